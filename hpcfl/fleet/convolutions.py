"""Convolutions of many client models at once on a GPU, in one of two forms.

``vmap`` makes one *grouped* convolution of those of the lanes, a group a lane. Libraries have few fast
kernels for that, for the gradient of the weights above all. The other form is a *product*: every patch of the
input becomes a column, and the weights of all lanes are multiplied with their columns in one batched product.
It reads and writes kernel height × width times the input, which pays where enough outputs are computed from a
column. Both give the same numbers up to rounding.

Which form a layer has is a fixed rule of the layer and the kind of device, never a timing. On a CPU it is
grouped. The number in the rule is a guess: nobody has measured it on a GPU yet.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

LEAST = 16  # outputs of a layer that is computed as a product
BY_PRODUCTS = {"cuda"}
RULE = f"convolutions of {LEAST} outputs and more as products"


def prepared(module: nn.Module, device: torch.device) -> nn.Module:
    """The same module, from now on with the forms of its convolutions that the rule says."""
    if device.type in BY_PRODUCTS:
        for part in module.modules():
            if isinstance(part, nn.Conv2d) and _fits(part):
                part.forward = Product(part)  # type: ignore[assignment]
    return module


def _fits(layer: nn.Conv2d) -> bool:
    """Whether the rule says that a layer is a product, and ``Product`` can be it."""
    return (layer.out_channels >= LEAST and layer.groups == 1 and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str))


class Product:
    """The forward pass of one client's ``layer`` on images ``[batch, inputs, height, width]``."""

    def __init__(self, layer: nn.Conv2d):
        assert not isinstance(layer.padding, str)
        self.layer, self.padding = layer, layer.padding

    def __call__(self, x: Tensor) -> Tensor:
        layer, weight = self.layer, self.layer.weight
        height, width = (
            (size + 2 * pad - spread * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, spread in zip(
                x.shape[2:], layer.kernel_size, layer.stride, self.padding, layer.dilation, strict=True))
        columns = functional.unfold(x, layer.kernel_size, layer.dilation, self.padding, layer.stride)
        # one product for the batch: [outputs, patch] × [patch, batch · positions]
        made = weight.flatten(1) @ columns.transpose(0, 1).flatten(1)
        made = made.view(len(weight), len(x), height, width).transpose(0, 1)
        return made if layer.bias is None else made + layer.bias[:, None, None]
