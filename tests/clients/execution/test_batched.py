"""The batched kernel compared with the serial one, which is ordinary torch, and with
itself for other numbers of lanes.
"""

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.clients.execution import BatchedKernel, Work, batched, choose_kernel
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, HeadModel, default_prediction
from hpcfl.models.cnn import CNN
from hpcfl.models.mlp import MLP


@pytest.mark.parametrize(
    ("model", "device", "lanes"),
    [
        # lanes in 6 MB at twice 4 bytes per parameter: 50,890, 2,410 and more than a
        # million parameters
        (MLP((1, 28, 28), 10), "cpu", 15),
        (MLP((1, 8, 8), 10, hidden=(32,)), "cpu", 326),
        (MLP((1, 28, 28), 10, hidden=(1300,)), "cpu", 2),
        (CNN((1, 28, 28), 10), "cpu", 1),
        (CNN((1, 28, 28), 10), "cuda", 1 << 30),
    ],
)
def test_default_number_of_lanes(model, device, lanes):
    assert choose_kernel(model, torch.device(device), "auto").widest == lanes


@pytest.mark.parametrize("batch", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(6, 5), (10, 30), (7, 33), (100, 61), (10, 50), (64, 785), (13, 17)],
)
def test_a_product_does_not_depend_on_a_lanes_memory_alignment(outputs, inputs, batch):
    """With these sizes the lanes of one tensor have different alignments for the
    processor's vectors: forward and both backward products.
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
    found, losses = session.compute_gradients(slice(0, LANES), batch, {})
    return [*found.values(), losses]


def mini_batch():
    return Batch(torch.randn(LANES, BATCH, *SHAPE), torch.randint(4, (LANES, BATCH)))


# Layers below and above batched.SMALL: they use two products.
@pytest.mark.parametrize("hidden", [(), (7,), (7, 6), (32,), (32, 16), (784, 64)])
@pytest.mark.parametrize(
    "trained", ["", "head", "hidden1", "weight", "bias"], ids=lambda part: part or "all"
)
def test_gradients_have_the_bits_of_autograd(hidden, trained):
    assert_bits_of_autograd(MLP(SHAPE, 4, hidden=hidden), trained)


def assert_bits_of_autograd(module, trained=""):
    """Compare the gradients of the trained parameters and the losses."""
    tensors, batch = lanes_of(module), mini_batch()
    names = [name for name in tensors if trained in name] or list(tensors)
    quick, plain = (
        gradients(module, loss, tensors, names, batch)
        for loss in (CROSS_ENTROPY, by_autograd)
    )
    for one, other in zip(quick, plain, strict=True):
        assert torch.equal(one, other)


class Curved(nn.Module):
    """A model other than a stack of linear layers with ReLU."""

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
    assert not batched.find_linear_layers(module)
    assert_bits_of_autograd(module)


def test_predictions_have_the_bits_of_the_model():
    module = MLP(SHAPE, 4)
    tensors, x = lanes_of(module), mini_batch().x
    kernel = BatchedKernel(module, LANES)
    functions = default_prediction, lambda model, x, lane: model(x)
    quick, plain = (kernel.predict(tensors, x, {}, one) for one in functions)
    assert torch.equal(quick, plain)


def test_a_separate_head_is_one_linear_layer():
    head = HeadModel(MLP(SHAPE, 4))
    assert batched.find_linear_layers(head) == ["head"]


@pytest.mark.parametrize(
    "head", [nn.Linear(64, 4, bias=False), nn.Sequential(nn.Linear(64, 4))]
)
def test_a_head_of_another_type_is_no_linear_layer(head):
    module = MLP(SHAPE, 4)
    module.head = head
    assert not batched.find_linear_layers(module)


def test_logits_of_another_shape_are_refused():
    class Single(Curved):
        def forward(self, x):
            return super().forward(x).sum(dim=1)

    module = Single()
    tensors = lanes_of(module)
    with pytest.raises(TypeError, match=r"logits .* \[5\]"):
        gradients(module, CROSS_ENTROPY, tensors, list(tensors), mini_batch())
