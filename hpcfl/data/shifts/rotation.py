"""Rotated images: each group of clients rotates images counter-clockwise by an angle
(heterogeneity.md H1).

Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020:
MNIST rotated by 0, 90, 180 and 270 degrees, CIFAR-10 by 0 and 180. There and in FedLab
every group has the whole data set, as here with ``replicate``; by default a sample has
one owner. Multiples of 90 degrees are exact. Other angles use bilinear interpolation
about the centre, padded with zeros, in float32.
"""

from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hpcfl.data.shifts.base import Concept, Facts, Shift, to_range


class Rotation(Shift):
    kind: str = "rotation"
    angles: list[float] = Field(
        [0.0, 90.0, 180.0, 270.0],
        min_length=1,
        max_length=360,
        description="angle of each group, in degrees counter-clockwise",
    )

    untouched = "0°"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        return [self._rotate(angle % 360, facts) for angle in self.angles]

    def _rotate(self, angle: float, facts: Facts) -> Concept:
        name = f"{angle:g}°"
        if not angle:
            return Concept(name)
        height, width = facts.shape[1:]
        if height != width and angle != 180:
            raise facts.make_error(
                "angles", f"images of {height}×{width} pixels allow only 0 and 180"
            )
        if angle % 90:
            return Concept(name, partial(_interpolate, angle, facts.scale))
        return Concept(name, partial(_turn_quarters, int(angle) // 90))


def _turn_quarters(times: int, x: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.rot90(x, times, dims=(2, 3)).contiguous()


def _interpolate(angle: float, scale: float, x: Tensor, numbers: np.ndarray) -> Tensor:
    # a slow import that only some angles need
    from scipy.ndimage import rotate

    pixels = x.float().div(scale).numpy()
    turned = rotate(pixels, angle, axes=(2, 3), reshape=False, order=1)
    return to_range(torch.from_numpy(turned), x.dtype, scale)


plugin = Rotation
