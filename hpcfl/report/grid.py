"""A table of results: rows × columns of means and standard deviations over repetitions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Entry:
    """The repetitions of one experiment."""

    mean: float
    std: float  # NaN for a single run
    runs: int  # how many
    # of how many clients each number is, such as "20" or "9 to 10"; "" if that was not
    # recorded
    clients: str
    # the samples by which the best rounds were chosen, "test" or "validation"; "" for
    # numbers that are not of these rounds
    best_by: str
    best: bool = False  # whether its mean is the best of its column


@dataclass(frozen=True)
class Grid:
    """A table of results, not yet in any format."""

    metric: str  # what the numbers are
    at: str  # where in each run they are read: best, last or tail
    spread: str  # which standard deviation: population or sample
    rows: list[str]  # labels
    columns: list[str]  # labels
    entries: list[list[Entry | None]]  # by row and column; None where nothing was run
    percent: bool  # whether the numbers are in %
    notes: list[str]  # lines to show below the table

    def ordered(self, rows: Sequence[str]) -> "Grid":
        """The same with its rows in the order of ``rows``; those that are not there
        come last.
        """
        labels = [row for row in rows if row in self.rows]
        labels += [row for row in self.rows if row not in rows]
        entries = [self.entries[self.rows.index(row)] for row in labels]
        return replace(self, rows=labels, entries=entries)
