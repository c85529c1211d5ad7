"""Random crops and flips of images, many at once on their device: how each is changed is a number
drawn beforehand."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4
_OFFSETS = 2 * PADDING + 1
# vertical and horizontal offset, flipped or not; numbered from 1, 0 changes nothing
VARIANTS = _OFFSETS ** 2 * 2


def draw(count: int, generator: np.random.Generator) -> np.ndarray:
    """Variants for ``count`` images, uniform, int64."""
    return generator.integers(1, VARIANTS + 1, count)


def apply(images: Tensor, variants: Tensor) -> Tensor:
    """Images [n, channels, height, width] after padding with zeros by 4: cropped to their size, perhaps
    flipped left to right."""
    plain, code = variants == 0, variants - 1
    down = torch.where(plain, PADDING, code // (2 * _OFFSETS))[:, None]
    right = torch.where(plain, PADDING, code // 2 % _OFFSETS)[:, None]
    flipped = ((code % 2 == 1) & ~plain)[:, None]
    height, width = (torch.arange(side, device=images.device) for side in images.shape[2:])
    rows, columns = down + height, right + torch.where(flipped, width.flip(0), width)
    number, channel = (torch.arange(size, device=images.device) for size in images.shape[:2])
    return pad(images, [PADDING] * 4)[number[:, None, None, None], channel[:, None, None],
                                      rows[:, None, :, None], columns[:, None, None, :]]
