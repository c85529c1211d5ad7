"""The bits of a lane do not depend on other lanes: in layers of torch, and for every
operator that is computed for several lanes at once.
"""

import pytest
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
# Layers of torch with their arguments: with operators that are computed for several
# lanes at once, and with those for which lanes run one after the other.
ARGUMENTS = {
    "AdaptiveAvgPool2d": (2,),
    "AvgPool3d": (2,),
    "BatchNorm1d": (3,),
    "BatchNorm2d": (3,),
    "Bilinear": (WIDTH, WIDTH, 7),
    "CircularPad2d": (1,),
    "Conv2d": (3, 2, 2),
    "ConvTranspose1d": (3, 2, 2),
    "Dropout": (0.0,),
    "Embedding": (20, 4),
    "EmbeddingBag": (20, 4),
    "GELU": (),
    "GroupNorm": (3, WIDTH),
    "InstanceNorm1d": (3, 1e-5, 0.1, True),
    "LayerNorm": (WIDTH,),
    "LeakyReLU": (),
    "Linear": (WIDTH, 13),
    "LocalResponseNorm": (2,),
    "LPPool1d": (2, 2),
    "MaxPool2d": (2,),
    "MultiheadAttention": (18, 2),
    "PReLU": (),
    "PixelUnshuffle": (3,),
    "ReLU6": (),
    "ReflectionPad1d": (1,),
    "RMSNorm": (WIDTH,),
    "Sigmoid": (),
    "Softmax2d": (),
    "TransformerDecoderLayer": (18, 2, 8, 0.0),
    "TransformerEncoderLayer": (18, 2, 8, 0.0),
    "Unfold": (2,),
    "Upsample": (None, 2),
}
# shape of a sample for layers whose name does not show it
IMAGES = "Softmax2d PixelUnshuffle Unfold Upsample"
SEQUENCES = (
    "LocalResponseNorm TransformerDecoderLayer TransformerEncoderLayer "
    "MultiheadAttention"
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
    "of lists": lambda x: torch.cat([one + 1 for one in x.split([3, 4], dim=1)], dim=1),
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_lane_has_the_same_bits_beside_any_others_in_layers(name):
    kernel = BatchedKernel(Around(name), LANES, keeps_bits=True)
    assert not depends_on_lanes(kernel)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("change", [lambda module: module, mixed.mix])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_known_operators_run_side_by_side(name, change):
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
def test_layers_that_come_in_the_place_of_torchs_run_side_by_side(name):
    module = replace_layers(Around(name))
    kernel = BatchedKernel(module, LANES)
    assert not depends_on_lanes(kernel) and not kernel.dependent


# layers with further operators of this kind
BESIDE = ["ReLU6", "LeakyReLU", "LayerNorm", "GroupNorm", "Embedding", "BatchNorm1d"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_every_operator_that_runs_side_by_side_is_compared_here():
    seen = set()
    observer = OperatorObserver(
        lambda operator, *_: seen.add(lane_independence._name(operator))
    )
    for module in [*map(Through, FUNCTIONS.values()), *map(Around, BESIDE)]:
        kernel = BatchedKernel(module, 1)
        with observer:
            computed(kernel, models(module), 3, [0])
    assert not lane_independence.INDEPENDENT - seen


def test_a_lane_with_one_sample_has_the_same_bits_alone_as_beside_others():
    """On Intel's processors MKL multiplies a single pair of matrices with a different
    kernel.
    """
    layers = nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, CLASSES)
    kernel = choose_kernel(nn.Sequential(*layers), torch.device("cpu"), "auto")
    assert not depends_on_lanes(kernel, batches=(1,))


def test_the_embedding_of_padding_stays_as_it_is_in_every_lane(make_fleet, rows_of):
    """The padding is token 10."""
    fleet = make_fleet(model={"name": "tiny:layered", "kind": "embedding"})
    rows = rows_of(fleet)
    trained = fleet.train(rows)
    before, after = (fleet.layout.split(some)["1.weight"] for some in (rows, trained))
    moved = (after != before).any(dim=2)
    assert not moved[:, 10].any() and moved.any(dim=1).all()


def test_a_number_of_lanes_is_obeyed(make_fleet, rows_of):
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


def test_operators_are_looked_at_once_for_the_shapes_of_a_lane():
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
