"""Gradients by hand against those of autograd, to the last bit."""

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.clients.execution import BatchedKernel, Work, linear_stack
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, HeadModel, default_prediction
from hpcfl.models.mlp import MLP

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
    assert linear_stack.find_linear_layers(module) is None
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
    assert linear_stack.find_linear_layers(head) == ["head"]


@pytest.mark.parametrize(
    "head", [nn.Linear(64, 4, bias=False), nn.Sequential(nn.Linear(64, 4))]
)
def test_another_head_is_no_layer_of_a_stack(head):
    module = MLP(SHAPE, 4)
    module.head = head
    assert linear_stack.find_linear_layers(module) is None


def test_logits_of_another_shape_are_refused():
    class Single(Curved):
        def forward(self, x):
            return super().forward(x).sum(dim=1)

    module = Single()
    tensors = lanes_of(module)
    with pytest.raises(TypeError, match="logits of a client have shape"):
        gradients(module, CROSS_ENTROPY, tensors, list(tensors), mini_batch())
