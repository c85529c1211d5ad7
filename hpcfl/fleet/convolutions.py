"""Convolutions of many client models at once on a GPU, in one of two forms.

``vmap`` makes one *grouped* convolution of those of the lanes, a group a lane.
Libraries have few fast kernels for that, for the gradient of the weights above all. The
other form is a *product*: every patch of the input becomes a column, and the weights of
all lanes are multiplied with their columns in one batched product. It reads and writes
kernel height × width times the input, which pays where enough outputs are computed from
a column. Both give the same numbers up to rounding.

Which form a layer has is a fixed rule of the layer and the kind of device, never a
timing. On a CPU it is grouped. The number in the rule is a guess: nobody has measured
it on a GPU yet.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

LEAST = 16  # outputs of a layer that is computed as a product
BY_PRODUCTS = {"cuda"}
RULE = f"convolutions of {LEAST} outputs and more as products"


def prepared(module: nn.Module, device: torch.device) -> nn.Module:
    """The same module, from now on with the forms of its convolutions that the rule
    says.
    """
    if device.type in BY_PRODUCTS:
        for part in module.modules():
            if isinstance(part, nn.Conv2d) and _fits(part):
                part.forward = Product(part)  # type: ignore[assignment]
    return module


def _fits(layer: nn.Conv2d) -> bool:
    """Whether the rule says that a layer is a product, and ``Product`` can be it.

    A subclass that computes something else, such as with standardised weights, stays as
    it is.
    """
    plain = all(
        getattr(type(layer), name) is getattr(nn.Conv2d, name)
        for name in ("forward", "_conv_forward")
    )
    return (
        plain
        and layer.out_channels >= LEAST
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


class Product:
    """The forward pass of one client's ``layer`` on images ``[batch, inputs, height,
    width]``, or on one.
    """

    def __init__(self, layer: nn.Conv2d):
        assert not isinstance(layer.padding, str)
        self.layer, self.padding = layer, layer.padding

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 3:  # one image alone, which a convolution takes as well
            one: Tensor = self(x[None])[0]
            return one
        layer, weight = self.layer, self.layer.weight
        above, beside = self.padding
        patches = (
            functional.pad(x, (beside, beside, above, above)) if above or beside else x
        )
        # views, then one copy: ``functional.unfold`` launches a kernel for every image
        # of every lane
        for dimension, kernel, stride, spread in zip(
            (2, 3), layer.kernel_size, layer.stride, layer.dilation, strict=True
        ):
            patches = patches.unfold(dimension, spread * (kernel - 1) + 1, stride)[
                ..., ::spread
            ]
        batch, _, height, width = patches.shape[:4]
        columns = patches.permute(1, 4, 5, 0, 2, 3).reshape(-1, batch * height * width)
        # one product for the batch: [outputs, patch] × [patch, batch · positions]
        made = weight.flatten(1) @ columns
        made = made.view(len(weight), batch, height, width).transpose(0, 1)
        return made if layer.bias is None else made + layer.bias[:, None, None]
