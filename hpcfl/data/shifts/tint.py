"""Tinted images: in each group every channel is multiplied by a factor of its own, drawn
from [1 − c, 1 + c] (heterogeneity.md H3); no paper has fixed numbers.
"""

from functools import partial

import numpy as np
from pydantic import Field

from hpcfl.data.shifts._pixels import on_pixels
from hpcfl.data.shifts.base import Concept, Facts, Shift


class Tint(Shift):
    kind: str = "tint"
    c: float = Field(0.5, ge=0, le=1, description="how far factors lie around 1")
    groups: int = Field(2, ge=1, le=1000, description="how many")

    untouched = "no tint"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        return [self._of_group(group, facts) for group in range(self.groups)]

    def _of_group(self, group: int, facts: Facts) -> Concept:
        random = facts.generator("tint", group)
        factors = random.uniform(1 - self.c, 1 + self.c, facts.shape[0])
        change = partial(_multiplied, factors.astype(np.float32)[:, None, None])
        return Concept(f"tint {group}", on_pixels(change, facts))


def _multiplied(factors: np.ndarray, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    tinted: np.ndarray = x * factors
    return tinted


plugin = Tint
