"""The bits of a lane do not depend on other lanes: in every layer of torch, for every
operator that is computed for several lanes at once.
"""

import pytest
import tiny
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.clients.execution import (
    BatchedKernel,
    Work,
    choose_kernel,
    lane_independence,
)
from hpcfl.clients.execution.lane_independence import OperatorObserver, SameBits
from hpcfl.clients.losses import Batch
from hpcfl.models import mixed
from hpcfl.models.layer_replacements import replace_layers
from hpcfl.models.random import draw_words

LANES, WIDTH, CLASSES = 5, 54, 3
# 54 features, so that lanes end at different positions in a processor's vectors
SHAPES = {"1d": (3, 18), "2d": (3, 3, 6), "3d": (3, 2, 3, 3)}
PLAIN = (
    "CELU ELU Flatten GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity "
    "LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax2d Softplus "
    "Softshrink Softsign Tanh Tanhshrink"
)
# arguments of torch.nn's layers
ARGUMENTS = {
    **{f"AdaptiveAvgPool{d}": (2,) for d in SHAPES},
    **{f"AdaptiveMaxPool{d}": (2,) for d in SHAPES},
    **{f"AvgPool{d}": (2,) for d in SHAPES},
    **{f"BatchNorm{d}": (3,) for d in SHAPES},
    **{f"CircularPad{d}": (1,) for d in SHAPES},
    **{f"ConstantPad{d}": (1, 0.5) for d in SHAPES},
    **{f"Conv{d}": (3, 2, 2) for d in SHAPES},
    **{f"ConvTranspose{d}": (3, 2, 2) for d in SHAPES},
    **{f"Dropout{d}": (0.0,) for d in SHAPES},
    **{f"InstanceNorm{d}": (3, 1e-5, 0.1, True) for d in SHAPES},
    **{f"LPPool{d}": (2, 2) for d in SHAPES},
    **{f"MaxPool{d}": (2,) for d in SHAPES},
    **{f"ReflectionPad{d}": (1,) for d in SHAPES},
    **{f"ReplicationPad{d}": (1,) for d in SHAPES},
    **{f"ZeroPad{d}": (1,) for d in SHAPES},
    **dict.fromkeys(("AlphaDropout", "Dropout", "FeatureAlphaDropout"), (0.0,)),
    "Bilinear": (WIDTH, WIDTH, 7),
    "ChannelShuffle": (3,),
    "Embedding": (20, 4),
    "EmbeddingBag": (20, 4),
    "GroupNorm": (3, WIDTH),
    "LayerNorm": (WIDTH,),
    "Linear": (WIDTH, 13),
    "LocalResponseNorm": (2,),
    "LogSoftmax": (1,),
    "MultiheadAttention": (18, 2),
    "PixelShuffle": (1,),
    "PixelUnshuffle": (3,),
    "RMSNorm": (WIDTH,),
    "Softmax": (1,),
    "Softmin": (1,),
    "Threshold": (0.1, 0.0),
    "TransformerDecoderLayer": (18, 2, 8, 0.0),
    "TransformerEncoderLayer": (18, 2, 8, 0.0),
    "Unfold": (2,),
    "Unflatten": (1, (3, 18)),
    "Upsample": (None, 2),
    "UpsamplingBilinear2d": (None, 2),
    "UpsamplingNearest2d": (None, 2),
    **dict.fromkeys(PLAIN.split(), ()),
}
# shape of a sample for layers whose name does not show it
IMAGES = "Softmax2d PixelShuffle PixelUnshuffle Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d"
SEQUENCES = (
    "LocalResponseNorm ChannelShuffle TransformerDecoderLayer "
    "TransformerEncoderLayer MultiheadAttention"
)
# Layers that draw random numbers, cannot be batched, contain other layers or need two
# inputs, and classes that are no layers.
NOT_HERE = (
    "RReLU GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase FractionalMaxPool2d "
    "FractionalMaxPool3d Container DataParallel Module ModuleDict ModuleList "
    "ParameterDict ParameterList Sequential Transformer TransformerDecoder "
    "TransformerEncoder CosineSimilarity PairwiseDistance MaxUnpool1d MaxUnpool2d "
    "MaxUnpool3d SyncBatchNorm CrossMapLRN2d Fold AdaptiveLogSoftmaxWithLoss"
)


class Around(nn.Module):
    """A layer between two dense layers."""

    def __init__(self, name):
        super().__init__()
        self.name, self.shape = name, SHAPES.get(name[-2:], (WIDTH,))
        if name in IMAGES.split():
            self.shape = SHAPES["2d"]
        if name in SEQUENCES.split():
            self.shape = SHAPES["1d"]
        self.before = nn.Linear(5, WIDTH)
        self.layer = getattr(nn, name)(*ARGUMENTS[name])
        self.after = nn.Linear(self.inside(torch.randn(2, WIDTH)).shape[1], CLASSES)

    def inside(self, x):
        x = x.view(-1, *self.shape)
        if self.name.startswith("Embedding"):
            x = (4 * x).long().clamp(0, 19)
        more = {"Bilinear": 1, "TransformerDecoderLayer": 1, "MultiheadAttention": 2}
        found = self.layer(x, *[x] * more.get(self.name, 0))
        return (found[0] if isinstance(found, tuple) else found).flatten(1)

    def forward(self, x):
        return self.after(self.inside(self.before(x)))


class Through(nn.Module):
    """A function between two dense layers."""

    def __init__(self, function):
        super().__init__()
        self.before, self.function = nn.Linear(5, 7), function
        self.after = nn.Linear(function(torch.rand(2, 7)).shape[1], CLASSES)

    def forward(self, x):
        return self.after(self.function(self.before(x)))


def attention(x):
    parts = x[:, None, :6].unflatten(2, (3, 2))
    return functional.scaled_dot_product_attention(parts, parts, parts).flatten(1)


def ranked(x):
    order = x.sort(dim=1).values
    best = x.argmax(dim=1, keepdim=True)
    return order + x.gather(1, best) + torch.zeros_like(x).scatter(1, best, 1.0)


def along_the_batch(x):
    best = x.argmax(dim=0, keepdim=True)
    ends = x.amax(0) - x.amin(0) + x.sort(dim=0).values.gather(0, best)
    square = x[:, :, None] * x[:, None, :]
    return x * (x.var(0) + x.mean(0) + x.norm(dim=0)) + ends + square.sum((0, 2))


def moved(x):
    square = x[:, :, None] * x[:, None, :]
    flipped = x.flip(1).repeat(1, 2)[:, 3:10]
    parts = [functional.pad(x, (1, 2))[:, 2:9], flipped, square.tril().triu().sum(2)]
    # A slice of the complete tensor is an alias.
    first = torch.stack(parts).unbind()[0][:, :99]
    return first + torch.cat(parts, dim=1)[:, :7]


def made(x):
    chosen = x.new_ones(7).bool() & ~x.new_zeros(7).bool() | x.new_full((7,), 1).bool()
    unit = (
        torch.eye(7)
        + torch.ones(7, 7)
        + torch.full((7, 7), 0.5)
        + torch.tensor([0.25])
        + chosen
    )
    rows, columns = torch.triu_indices(7, 7, 1)
    return x * unit.sum() + torch.full_like(x, 2.0) + x[:, rows].sum() + columns.sum()


def placed(x):
    wide = x.new_zeros(len(x), 9)
    where = torch.arange(7).clamp(max=4).expand(len(x), 7)
    wide = wide.scatter_add(1, where, x)
    picked = wide.index_select(1, torch.tensor([3, 0, 0]))
    return torch.cat([wide[:, [0, 1, 1]], picked, x.masked_fill(x > 1, 0.5)], dim=1)


def compared(x):
    either = (x > 0.1).logical_or(x < -0.2).logical_and((x >= -2) & (x <= 2))
    other = x.ne(0.5).logical_not() | x.eq(0.25)
    signs = x.sign() * x.any(dim=1, keepdim=True)
    return torch.where(either | other, x, -x).clamp(-1, 1) + signs


def dropped(x):
    places = torch.arange(x.numel(), dtype=torch.int32).view_as(x)
    return x.where(draw_words((1e6 * x[0, :2]).int(), places) > 0, 0)


FUNCTIONS = {
    "random words": dropped,
    "arithmetic": lambda x: 1 - (x * x + 2) / (x.abs() + 0.5) * 0.3 - x.detach() // 1,
    "exp and log": lambda x: x.exp().log1p() + x.abs().add(0.1).log() + x.expm1(),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sine": lambda x: x.sin() + x.cos() + x.erf(),
    "roots": lambda x: x.square().add(1).sqrt().reciprocal() + (x**2 + 2).rsqrt(),
    "powers": lambda x: x**2 + x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -1,
    "larger": lambda x: x.maximum(-x) + x.minimum(2 * x) + x.clamp_max(1).clamp_min(-1),
    "distances": lambda x: (x.var(1) + x.mean(1) + x.norm(dim=1))[:, None] * x,
    "along the batch": along_the_batch,
    "ends": lambda x: x.amax(1, keepdim=True) - x.amin(1, keepdim=True) + x,
    "of lists": lambda x: torch.cat([one + 1 for one in x.split([3, 4], dim=1)], dim=1),
    "normalised": lambda x: functional.normalize(x, dim=1),
    "products": lambda x: torch.baddbmm(
        *[x[:, :6].view(-1, 2, 3)] * 2, torch.eye(3).expand(len(x), 3, 3)
    ).flatten(1),
    "softmax": lambda x: x.softmax(dim=1),
    "attention": attention,
    "ranked": ranked,
    "moved": moved,
    "made": made,
    "placed": placed,
    "compared": compared,
}


class Seen(OperatorObserver):
    """Names of all operators that are called."""

    def __init__(self):
        self.names = set()
        super().__init__(
            lambda operator, *_: self.names.add(lane_independence._name(operator))
        )


def loss(model, batch, lane):
    return functional.cross_entropy(model(batch.x), batch.y)


def outputs(model, x, lane):
    return model(x)


def models(module, lanes=LANES):
    """Return tensors of different models, and of statistics."""
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        several = tensor.detach().expand(lanes, *tensor.shape).float()
        found[name] = several + 0.3 * torch.rand(several.shape, generator=generator)
    return found


def computed(kernel, tensors, batch, lanes):
    """Return gradients, losses, updated statistics and predictions of these lanes."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(LANES, batch, 5, generator=generator)
    y = torch.randint(0, CLASSES, (LANES, batch), generator=generator)
    chosen = {name: tensor[lanes].clone() for name, tensor in tensors.items()}
    trained = [name for name, _ in kernel.module.named_parameters()]
    session = kernel.begin(Work(chosen, trained, loss))
    width = slice(0, len(lanes))
    gradients, losses = session.compute_gradients(width, Batch(x[lanes], y[lanes]), {})
    predicted = kernel.predict(chosen, x[lanes], {}, outputs)
    return [*gradients.values(), losses, *session.work.tensors.values(), predicted]


def depends_on_lanes(kernel, batches=(3, 10)):
    """Return whether any lane has other bits among all lanes than among few."""
    tensors = models(kernel.module)
    few = [[0], [3], [1, 2], [2, 3, 4]]
    for batch in batches:
        whole = computed(kernel, tensors, batch, list(range(LANES)))
        for lanes in few:
            part = computed(kernel, tensors, batch, lanes)
            pairs = zip(whole, part, strict=True)
            if not all(torch.equal(one[lanes], other) for one, other in pairs):
                return True
    return False


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, as in a run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_layer_of_torch_is_listed_for_comparison():
    layers = {
        name
        for name, kind in vars(nn).items()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and "Lazy" not in name
        and not name.endswith(("Loss", "Loss2d"))
    }
    assert layers - set(NOT_HERE.split()) == ARGUMENTS.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_lane_bits_do_not_depend_on_other_lanes_in_any_layer(name):
    kernel = BatchedKernel(Around(name), LANES, keeps_bits=True)
    assert not depends_on_lanes(kernel)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("change", [lambda module: module, mixed.mix])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_known_operators_run_in_lanes(name, change):
    kernel = BatchedKernel(change(Through(FUNCTIONS[name])), LANES, keeps_bits=False)
    assert not depends_on_lanes(kernel) and not kernel.dependent


@pytest.mark.parametrize(
    "name",
    [
        "Embedding",
        "GELU",
        "MultiheadAttention",
        "TransformerDecoderLayer",
        "TransformerEncoderLayer",
    ],
)
def test_replacements_of_torchs_layers_run_in_lanes(name):
    module = replace_layers(Around(name))
    kernel = BatchedKernel(module, LANES)
    assert not depends_on_lanes(kernel) and not kernel.dependent


LAYERS_OF_LIST = "ReLU6 LeakyReLU LayerNorm GroupNorm Embedding BatchNorm1d"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_independent_operator_is_compared():
    seen = Seen()
    for module in [
        *map(Through, FUNCTIONS.values()),
        *map(Around, LAYERS_OF_LIST.split()),
    ]:
        kernel = BatchedKernel(module, 1)
        with seen:
            computed(kernel, models(module), 3, [0])
    assert not lane_independence.INDEPENDENT - seen.names


def test_lane_bits_of_one_sample_do_not_depend_on_other_lanes():
    """On Intel's processors MKL multiplies a single pair of matrices with a different
    kernel.
    """
    layers = nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, CLASSES)
    kernel = choose_kernel(nn.Sequential(*layers), torch.device("cpu"), "auto")
    assert not depends_on_lanes(kernel, batches=(1,))


def dense_normalised(shape, classes):
    """Return batch norm between two dense layers."""
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)
    return nn.Sequential(*layers)


def squashed(shape, classes):
    return nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, classes))


def padded(shape, classes, *, by_frequency: bool = False):
    return Padded(classes, by_frequency)


class Padded(nn.Module):
    """An embedding with padding token 0, the second token of each sample."""

    def __init__(self, classes, by_frequency):
        super().__init__()
        self.embedding = nn.Embedding(
            20, 4, padding_idx=0, scale_grad_by_freq=by_frequency
        )
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        tokens = (4 * x).long().clamp(1, 19)
        tokens = torch.cat([tokens[:, :1], 0 * tokens[:, 1:]], dim=1)
        return self.head(self.embedding(tokens).mean(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [5, 7])
@pytest.mark.parametrize("name", ["dense_normalised", "squashed", "padded"])
def test_clients_on_fewer_ranks_have_the_same_bits(
    make_fleet, rows_of, name, batch_size
):
    """Five clients on one rank in one batch, and as on three ranks."""
    how = {
        "model": {"name": f"test_lane_independence:{name}"},
        "batch_size": batch_size,
    }
    fleet = make_fleet(**how)
    rows = rows_of(fleet)
    fleet.score("pre", rows)
    whole, losses = fleet.train(rows, epochs=3), fleet.results.losses
    for few in ([0], [1, 2], [3, 4]):
        part = make_fleet(**how)
        chosen = torch.isin(torch.arange(5), torch.tensor(few))
        assert torch.equal(part.train(rows, epochs=3, only=chosen)[few], whole[few])
        assert torch.equal(part.results.losses[few], losses[few])
    first = make_fleet(tiny.COUNTS[:1], **how)
    first.score("pre", rows[:1])
    one, many = (scored.results.scores["pre"]["loss"] for scored in (first, fleet))
    assert torch.equal(one, many[:1])
    kernel = fleet.resources.kernel
    assert kernel.widest > 1 and bool(kernel.dependent) == (name != "padded")


@pytest.mark.parametrize("by_frequency", [False, True])
def test_the_embedding_of_padding_stays_as_it_is_in_every_lane(
    make_fleet, rows_of, by_frequency
):
    name = "test_lane_independence:padded"
    fleet = make_fleet(lanes=5, model={"name": name, "by_frequency": by_frequency})
    rows = rows_of(fleet)
    trained = fleet.train(rows)
    before, after = (fleet.layout.split(some) for some in (rows, trained))
    moved = (after["embedding.weight"] != before["embedding.weight"]).any(dim=2)
    assert not moved[:, 0].any() and moved[:, 1:].any(dim=1).all()


def test_a_given_number_of_lanes_is_used(make_fleet, rows_of):
    calls = []

    class Counting(nn.Sequential):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    made = []
    for lanes in (LANES, "auto"):
        torch.manual_seed(1)
        module = Counting(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, CLASSES))
        kernel = choose_kernel(module, torch.device("cpu"), lanes, replay=False)
        calls.clear()
        computed(kernel, models(module), 3, list(range(LANES)))
        made.append(len(calls))
    # one check for each of both functions, then both for all lanes or for each lane
    assert made == [2 + 2, 2 + 2 * LANES]


def test_operators_are_checked_once_for_the_shapes_of_a_lane():
    """The check does not depend on the number of lanes; with other shapes a function
    may call other operators.
    """
    calls, dependent = [], set()

    def function(rows):
        calls.append(rows.shape)
        return (rows.sigmoid() if rows.shape[1] > 2 else rows + 1,)

    same_bits = SameBits(function, False, False, dependent)
    for lanes in (3, 2, 1, 3):
        same_bits(torch.ones(lanes, 2))
    assert len(calls) == 4 + 1 and not dependent
    for lanes in (1, 3):
        same_bits(torch.ones(lanes, 5))
    assert len(calls) == 5 + 2 + 1 and dependent == {"sigmoid"}
