"""Coordinate-wise rules: median and trimmed mean (Yin, Chen, Ramchandran & Bartlett,
"Byzantine-robust distributed learning", ICML 2018).
"""

import math

from pydantic import Field
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.columns import find_median, join_blocks, sort_columns
from hpcfl.updates.row_rule import RowRule

ROUNDING = 1e-9  # added because 0.29 · 100 is below 29 in floating point


def count_trimmed(rows: int, share: float) -> int:
    """Return ⌊share·rows⌋, the number of values removed at each end."""
    return math.floor(share * rows + ROUNDING)


class Median(RowRule):
    """The median of each coordinate; for an even number of values the mean of the two
    middle ones.

    Yin, Chen, Ramchandran & Bartlett, ICML 2018.
    """

    rule: str = "median"

    def describe_rows(self, rows: int) -> str:
        return f"takes the median of {rows} values of each coordinate"

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        return join_blocks(find_median, rows)


class TrimmedMean(RowRule):
    """The mean of each coordinate without its smallest and largest values.

    Yin, Chen, Ramchandran & Bartlett, ICML 2018.
    """

    rule: str = "trimmed-mean"
    trim: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="share β of the values that is removed at each end",
    )

    def describe_rows(self, rows: int) -> str:
        middle = rows - 2 * count_trimmed(rows, self.trim)
        return (
            f"takes the mean of the middle {middle} of {rows} values of each coordinate"
        )

    def list_notes(self, clients: int) -> list[str]:
        rows = self.count_rows(clients)
        if not self.trim or count_trimmed(rows, self.trim):
            return []
        return [
            f"aggregation.trim = {self.trim:g}: removes none of {rows} values, so the "
            "rule is the mean"
        ]

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        removed = count_trimmed(len(rows), self.trim)
        last = len(rows) - removed

        def average(block: Tensor) -> Tensor:
            return sort_columns(block)[removed:last].mean(dim=0)

        return join_blocks(average, rows)


plugins = {"median": Median, "trimmed-mean": TrimmedMean}
