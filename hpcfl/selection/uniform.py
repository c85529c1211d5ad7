"""Uniform: clients drawn uniformly, without replacement."""

import numpy as np

from hpcfl.selection.base import Known, Selection


class Uniform(Selection):
    def choose(self, known: Known, count: int) -> np.ndarray:
        return known.draw(count)


plugin = Uniform
