"""A table of results: rows × columns of means and standard deviations over repetitions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """The repetitions of one experiment."""

    mean: float
    std: float  # NaN for a single run
    runs: int  # how many
    clients: str  # of how many clients each number is, such as "20" or "9 to 10"; "" if that was not recorded
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
