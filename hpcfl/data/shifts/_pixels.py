"""Images in [0, 1], computed in float32, as the values that a data set has."""

import torch
from torch import Tensor


def of_range(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Values of which 1 is white as those of a data set whose white is ``scale``.

    Of bytes they are cut off at black and white, and the nearest whole numbers, halves
    to even; floats are not cut off.
    """
    if dtype == torch.uint8:
        return x.clamp(0, 1).mul(scale).round().to(dtype)
    return x.mul(scale).to(dtype)
