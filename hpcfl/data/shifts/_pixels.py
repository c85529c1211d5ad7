"""Images in [0, 1], computed in float32, as the values that a data set has, and the other
way round.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.shifts.base import Facts, Transform

# Pixels float32 [n, *shape], of which 1 is white, and the samples' numbers [n] → pixels.
OfPixels = Callable[[np.ndarray, np.ndarray], np.ndarray]


def of_range(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return values of which 1 is white as those of a data set whose white is
    ``scale``.

    Of bytes they are cut off at black and white, and the nearest whole numbers, halves
    to even; floats are not cut off.
    """
    if dtype == torch.uint8:
        return x.clamp(0, 1).mul(scale).round().to(dtype)
    return x.mul(scale).to(dtype)


def on_pixels(change: OfPixels, facts: Facts) -> Transform:
    """Return a change of pixels as a transformation of raw samples."""

    def transform(x: Tensor, numbers: np.ndarray) -> Tensor:
        pixels = x.float().div(facts.scale).numpy()
        changed = np.ascontiguousarray(change(pixels, numbers), np.float32)
        return of_range(torch.from_numpy(changed), facts.dtype, facts.scale)

    return transform


def in_hsv(x: np.ndarray, change: Callable[[np.ndarray], None]) -> np.ndarray:
    """Return coloured images [n, 3, height, width] after ``change`` of their hue,
    saturation and value [n, height, width, 3], in place.
    """
    from matplotlib.colors import hsv_to_rgb, rgb_to_hsv

    hsv = rgb_to_hsv(x.transpose(0, 2, 3, 1))
    change(hsv)
    coloured: np.ndarray = hsv_to_rgb(hsv).transpose(0, 3, 1, 2)
    return coloured


def require_bytes(facts: Facts, key: str, what: str) -> None:
    """Raise UserError where samples are not bytes, whose black and white are known."""
    if facts.dtype != torch.uint8:
        raise facts.wrong(key, f"{what} needs images of bytes; these are {facts.dtype}")


def require_colour(facts: Facts, key: str, what: str) -> None:
    """Raise UserError where images do not have three channels."""
    require_bytes(facts, key, what)
    if facts.shape[0] != 3:
        raise facts.wrong(
            key, f"{what} needs three channels; these images have {facts.shape[0]}"
        )
