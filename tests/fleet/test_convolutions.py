"""Convolutions as products against torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from hpcfl.fleet import convolutions

LAYERS = {
    "plain": {},
    "stride": {"stride": 2, "padding": 1},
    "dilation": {"dilation": 2, "bias": False},
    "uneven": {"kernel_size": (3, 1), "padding": (0, 2)},
}


def gradients(layer, named, x):
    """The outputs of lanes, and their gradients with respect to the lanes' weights and
    inputs.
    """
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *named.values())]
    out = vmap(
        lambda x, *given: functional_call(
            layer, dict(zip(named, given, strict=True)), (x,)
        )
    )(*leaves)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_a_product_gives_the_convolution_and_its_gradients(options, monkeypatch):
    monkeypatch.setattr(convolutions, "BY_PRODUCTS", {"cpu"})
    layer = nn.Conv2d(2, convolutions.LEAST, **{"kernel_size": 3, **options}).double()
    product = convolutions.prepared(copy.deepcopy(layer), torch.device("cpu"))
    named = {
        name: torch.randn(3, *tensor.shape).double()
        for name, tensor in layer.named_parameters()
    }
    x = torch.randn(3, 4, 2, 9, 7).double()
    assert isinstance(product.forward, convolutions.Product)
    for one, other in zip(
        gradients(product, named, x), gradients(layer, named, x), strict=True
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(product(x[0, 0]), layer(x[0, 0]))
    again = copy.deepcopy(product)
    assert again.forward.layer is again


class Standardised(nn.Conv2d):
    """Its weights are not what it multiplies with."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


def test_a_layer_that_computes_something_else_stays_as_it_is():
    layer = Standardised(1, convolutions.LEAST, 3)
    assert not isinstance(
        convolutions.prepared(layer, torch.device("cuda")).forward, convolutions.Product
    )


def test_the_rule_leaves_small_layers_and_cpus_alone():
    small, large = (
        nn.Conv2d(1, convolutions.LEAST - 1, 3),
        nn.Conv2d(1, convolutions.LEAST, 3),
    )
    for layer, device, product in (
        (small, "cuda", False),
        (large, "cpu", False),
        (large, "cuda", True),
    ):
        made = convolutions.prepared(layer, torch.device(device))
        assert isinstance(made.forward, convolutions.Product) == product
