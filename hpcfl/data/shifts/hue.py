"""Turned hues: the colours of group g of k go round by 360°·g/k (heterogeneity.md H3); no
paper has fixed numbers.
"""

from functools import partial

import numpy as np
from pydantic import Field

from hpcfl.data.shifts._pixels import in_hsv, on_pixels, require_colour
from hpcfl.data.shifts.base import Concept, Facts, Shift


class Hue(Shift):
    kind: str = "hue"
    groups: int = Field(2, ge=2, le=360, description="how many")

    untouched = "hue + 0°"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        require_colour(facts, "kind", f"'{self.kind}'")
        concepts = [Concept(self.untouched)]
        for group in range(1, self.groups):
            turn = partial(_turned, group / self.groups)
            name = f"hue + {360 * group / self.groups:g}°"
            concepts.append(Concept(name, on_pixels(turn, facts)))
        return concepts


def _turned(share: float, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    def turn(hsv: np.ndarray) -> None:
        hsv[..., 0] = (hsv[..., 0] + share) % 1

    return in_hsv(x, turn)


plugin = Hue
