"""A table of results: rows × columns of means and standard deviations over repetitions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Repetitions of one experiment: mean and sample standard deviation (NaN for a single run)
    over ``runs``."""

    mean: float
    std: float
    runs: int
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """``entries[row][column]``, None where nothing was run; ``percent``: the numbers are in %."""

    metric: str
    rows: list[str]
    columns: list[str]
    entries: list[list[Entry | None]]
    percent: bool
    notes: list[str]
