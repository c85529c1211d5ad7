"""The weighted mean, an exact sum on any number of ranks."""

from torch import Tensor

from hpcfl.rows import sums
from hpcfl.updates.base import Context, Rule


class Mean(Rule):
    needs_rows = False
    is_weighted = True
    allows_noise = True

    def combine(self, updates: Tensor, weights: Tensor, context: Context) -> Tensor:
        return sums.mean(updates, weights)


plugin = Mean
