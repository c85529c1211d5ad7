"""Random crops and flips of images, many at once on their device.

How an image is changed is its *variant*, a number that is drawn beforehand.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4
_OFFSETS = 2 * PADDING + 1
# A vertical and a horizontal offset, flipped or not; numbered from 1, and variant 0
# changes nothing.
VARIANTS = _OFFSETS**2 * 2


def draw(count: int, generator: np.random.Generator) -> np.ndarray:
    """Random variants for ``count`` images, uniform over 1 … ``VARIANTS``, int64
    [count].
    """
    return generator.integers(1, VARIANTS + 1, count)


def apply(images: Tensor, variants: Tensor) -> Tensor:
    """Pad images with zeros by 4 pixels, crop them to their size, and flip some.

    Args:
        images: [n, channels, height, width].
        variants: int64 [n], how each is cropped and whether it is flipped left to
            right.
    """
    plain = variants == 0
    code = variants - 1
    down = torch.where(plain, PADDING, code // (2 * _OFFSETS))[:, None]
    right = torch.where(plain, PADDING, code // 2 % _OFFSETS)[:, None]
    flipped = ((code % 2 == 1) & ~plain)[:, None]
    number, channel, height, width = (
        torch.arange(size, device=images.device) for size in images.shape
    )
    rows = down + height
    columns = right + torch.where(flipped, width.flip(0), width)
    padded = pad(images, [PADDING] * 4)
    return padded[
        number[:, None, None, None],
        channel[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
