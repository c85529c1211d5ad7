"""Selections that draw more clients than they need and take the best of them."""

from math import ceil

import numpy as np
from pydantic import Field

from hpcfl.clock.selection.base import Known, Selection


class OfDrawn(Selection):
    candidates: float = Field(
        2.0,
        ge=1,
        le=1e6,
        description="times as many clients are drawn as are chosen of them",
    )

    def drawn(self, known: Known, count: int) -> np.ndarray:
        """Return the ids of uniformly drawn clients, in the order of the draw.

        With ``candidates = 1`` only ``count`` are drawn, which is the uniform choice.
        """
        # 1e-9: 1.1 · 10 is above 11 in floating point
        return known.drawn(ceil(self.candidates * count - 1e-9))


def first(ids: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` ids [n] with the least ``costs`` [n]; earlier ones win ties."""
    chosen: np.ndarray = ids[np.argsort(costs, kind="stable")[:count]]
    return chosen
