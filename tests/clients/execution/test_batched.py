"""The stacked kernel against the serial one, which is ordinary torch, and against
itself with other lanes beside.
"""

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.clients.execution import BatchedKernel, SerialKernel, Work, batched, choose
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, HeadModel, default_prediction
from hpcfl.models.cnn import CNN
from hpcfl.models.mlp import MLP

OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.01},
    "clip": {"clip": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {
        "optimizer": "adamw",
        "lr": 0.01,
        "weight_decay": 0.1,
    },
    "all of it": {
        "optimizer": "adam",
        "lr": 0.01,
        "weight_decay": 0.01,
        "clip": 0.5,
    },
}
every_optimizer = pytest.mark.parametrize("keys", OPTIMIZERS.values(), ids=OPTIMIZERS)
COUNTS = [
    [8, 3, 0, 0],
    [0, 4, 0, 0],
    [1, 0, 6, 6],
    [0, 0, 1, 0],
    [7, 7, 7, 7],
    [0, 11, 0, 0],
    [3, 0, 0, 0],
    [2, 2, 2, 2],
]


@pytest.mark.parametrize(
    ("model", "device", "lanes"),
    [
        # of 3 MB by twice 4 bytes a parameter: 50,890, 2,410 and more than a million
        (MLP((1, 28, 28), 10), "cpu", 7),
        (MLP((1, 8, 8), 10, hidden=(32,)), "cpu", 163),
        (MLP((1, 28, 28), 10, hidden=(1300,)), "cpu", 2),
        (CNN((1, 28, 28), 10), "cpu", 1),
        (CNN((1, 28, 28), 10), "cuda", 1 << 30),
    ],
)
def test_how_many_lanes_there_are_unless_told(model, device, lanes):
    assert choose(model, torch.device(device), "auto").widest == lanes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "dtype", "tolerance"),
    [
        *((keys, torch.float64, 1e-6) for keys in OPTIMIZERS.values()),
        (OPTIMIZERS["all of it"], torch.float32, 1e-4),
    ],
)
def test_stacked_and_serial_agree(make_fleet, rows_of, keys, dtype, tolerance):
    serial, stacked = (
        make_fleet(
            COUNTS,
            lanes=1,
            dtype=dtype,
            **keys,
        ),
        make_fleet(COUNTS, dtype=dtype, **keys),
    )
    assert isinstance(serial.resources.kernel, SerialKernel) and isinstance(
        stacked.resources.kernel, BatchedKernel
    )
    rows = rows_of(serial)
    anchor = rows_of(serial, 2)[0]
    one, many = (
        fleet.train(rows, proximal=(0.3, anchor)) for fleet in (serial, stacked)
    )
    assert one.dtype == dtype
    assert ((one - many).norm(dim=1) / one.norm(dim=1)).max() < tolerance
    torch.testing.assert_close(
        serial.results.losses, stacked.results.losses, rtol=1e-4, atol=1e-6
    )


@every_optimizer
def test_lanes_beside_do_not_change_a_bit(make_fleet, rows_of, keys):
    results = []
    for lanes in (2, "auto"):
        fleet = make_fleet(COUNTS, lanes=lanes, **keys)
        results.append(fleet.train(rows_of(fleet), epochs=2))
        fleet.score("post", results[-1])
        results.append(fleet.results.scores["post"]["loss"])
    assert all(torch.equal(rows, results[0]) for rows in results[2::2])
    assert all(torch.equal(losses, results[1]) for losses in results[3::2])


@pytest.mark.parametrize("lanes", [1, 2, "auto"])
def test_clients_beside_do_not_change_a_bit(make_fleet, rows_of, lanes):
    """A client among eight and the same client among the first three of them."""
    many, few = make_fleet(COUNTS, lanes=lanes), make_fleet(COUNTS[:3], lanes=lanes)
    rows = rows_of(many)
    assert torch.equal(many.train(rows)[:3], few.train(rows[:3]))


@pytest.mark.parametrize("batch", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(6, 5), (10, 30), (7, 33), (100, 61), (10, 50), (64, 785), (13, 17)],
)
def test_a_product_does_not_depend_on_where_a_lane_lies_in_memory(
    outputs, inputs, batch
):
    """Sizes of which the lanes of one tensor lie differently to the processor's
    vectors: forward and both backward products.
    """
    weights, x, gradients = (
        torch.randn(20, outputs, inputs),
        torch.randn(20, batch, inputs),
        torch.randn(20, batch, outputs),
    )
    chosen = torch.tensor([1, 2, 5, 7, 8, 13, 16])
    for product in (
        lambda lanes: x[lanes] @ weights[lanes].transpose(1, 2),
        lambda lanes: gradients[lanes] @ weights[lanes],
        lambda lanes: gradients[lanes].transpose(1, 2) @ x[lanes],
    ):
        assert torch.equal(product(chosen), product(torch.arange(20))[chosen])


def test_gradient_of_training_is_the_losss_by_finite_differences(make_fleet, rows_of):
    fleet = make_fleet(
        [[3, 2, 0, 1]],
        dtype=torch.float64,
        batch_size=100,
        lr=1.0,
    )
    rows = rows_of(fleet)
    samples, module = fleet.resources.samples, fleet.setup.build().double()
    x, y = samples.take(samples.train[0])

    def loss(row):
        return torch.nn.functional.cross_entropy(
            torch.func.functional_call(module, fleet.layout.split(row), x), y
        )

    gradient, step = (rows - fleet.train(rows))[0], 1e-6
    for place in range(fleet.layout.width):
        shift = torch.zeros_like(rows[0])
        shift[place] = step
        assert (
            abs(
                (loss(rows[0] + shift) - loss(rows[0] - shift)).detach() / (2 * step)
                - gradient[place]
            )
            < 1e-8
        )


@pytest.mark.parametrize("lanes", [2, "auto"])
def test_buffers_of_batch_norm_stay_with_the_client_and_agree(
    make_fleet, rows_of, lanes
):
    model = {"name": "tiny:normalised", "hidden": 6}
    fleets = [
        make_fleet(COUNTS[4:5] * 3, lanes=given, model=model, epochs=2)
        for given in (1, lanes)
    ]
    rows = rows_of(fleets[0])
    before = {name: tensor.clone() for name, tensor in fleets[0].state.items()}
    one, many = (fleet.train(rows) for fleet in fleets)
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-5)
    for name, tensor in fleets[0].state.items():
        torch.testing.assert_close(tensor, fleets[1].state[name], rtol=1e-4, atol=1e-5)
        assert not torch.equal(tensor, before[name])
    for fleet in fleets:
        fleet.score("post", one)
    torch.testing.assert_close(
        fleets[0].results.scores["post"]["loss"],
        fleets[1].results.scores["post"]["loss"],
        rtol=1e-4,
        atol=1e-4,
    )


LANES, BATCH = 3, 5
SHAPE = (2, 3)


def by_autograd(model, batch, lane):
    return functional.cross_entropy(model(batch.x), batch.y)


def lanes_of(module):
    return {
        name: value.detach() + torch.randn(LANES, *value.shape)
        for name, value in module.named_parameters()
    }


def gradients(module, loss, tensors, trained, batch):
    session = BatchedKernel(module, LANES).begin(Work(tensors, trained, loss))
    found, losses = session.gradients(slice(0, LANES), batch, {})
    return [*found.values(), losses]


def mini_batch(shape=SHAPE):
    return Batch(torch.randn(LANES, BATCH, *shape), torch.randint(4, (LANES, BATCH)))


@pytest.mark.parametrize("hidden", [(), (7,), (7, 6)])
@pytest.mark.parametrize(
    "trained", ["", "head", "hidden1", "weight", "bias"], ids=lambda part: part or "all"
)
def test_gradients_have_the_bits_of_autograd(hidden, trained):
    module = MLP(SHAPE, 4, hidden=hidden)
    tensors, batch = lanes_of(module), mini_batch()
    names = [name for name in tensors if trained in name] or list(tensors)
    quick, plain = (
        gradients(module, loss, tensors, names, batch)
        for loss in (CROSS_ENTROPY, by_autograd)
    )
    for one, other in zip(quick, plain, strict=True):
        assert torch.equal(one, other)


def test_numbers_that_are_not_finite_go_the_same_way():
    module, batch = MLP(SHAPE, 4, hidden=(7,)), mini_batch()
    tensors = lanes_of(module)
    tensors["hidden1.weight"][0, 0, 0] = torch.nan
    quick, plain = (
        gradients(module, loss, tensors, list(tensors), batch)
        for loss in (CROSS_ENTROPY, by_autograd)
    )
    for one, other in zip(quick, plain, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


class Curved(nn.Module):
    """A model that is no stack of linear layers with ReLU."""

    def __init__(self):
        super().__init__()
        self.below, self.head = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.below(x.flatten(1)).tanh())


class Doubled(MLP):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("module", [Curved(), Doubled(SHAPE, 4)], ids=["curved", "mlp"])
def test_other_models_have_the_bits_of_autograd(module):
    tensors, batch = lanes_of(module), mini_batch()
    assert batched.find_linear_layers(module) is None
    quick, plain = (
        gradients(module, loss, tensors, list(tensors), batch)
        for loss in (CROSS_ENTROPY, by_autograd)
    )
    for one, other in zip(quick, plain, strict=True):
        assert torch.equal(one, other)


def test_predictions_have_the_bits_of_the_model():
    module = MLP(SHAPE, 4)
    tensors, x = lanes_of(module), mini_batch().x
    kernel = BatchedKernel(module, LANES)
    functions = default_prediction, lambda model, x, lane: model(x)
    quick, plain = (kernel.predict(tensors, x, {}, one) for one in functions)
    assert torch.equal(quick, plain)


def test_a_head_alone_is_a_stack_of_one_layer():
    head = HeadModel(MLP(SHAPE, 4))
    assert batched.find_linear_layers(head) == ["head"]


@pytest.mark.parametrize(
    "head", [nn.Linear(64, 4, bias=False), nn.Sequential(nn.Linear(64, 4))]
)
def test_another_head_is_no_layer_of_a_stack(head):
    module = MLP(SHAPE, 4)
    module.head = head
    assert batched.find_linear_layers(module) is None


def test_logits_of_another_shape_are_refused():
    class Single(Curved):
        def forward(self, x):
            return super().forward(x).sum(dim=1)

    module = Single()
    tensors = lanes_of(module)
    with pytest.raises(TypeError, match="logits of a client have shape"):
        gradients(module, CROSS_ENTROPY, tensors, list(tensors), mini_batch())
