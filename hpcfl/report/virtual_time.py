"""Virtual time of runs with ``[time]``."""

import math
from dataclasses import dataclass

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.series import AXES, refuse_packed
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure


@dataclass(frozen=True)
class Reached:
    """The time at which a number of a run was reached first.

    Attributes:
        seconds: of the clients' own time, NaN where it never was.
        round: None where it never was.
    """

    seconds: float
    round: int | None


def seconds_of(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T].

    Raises UserError where they are not recorded.
    """
    refuse_packed(run)
    _, positions = AXES["virtual"]
    seconds = positions(run, column)
    if np.isnan(seconds).all():
        raise UserError(
            f"{run.folder}: the clients' own time was not recorded; it is with [time], such "
            "as time.mode = 'synchronous'"
        )
    return seconds


def until(run: Run, column: str, numbers: np.ndarray, at: float) -> list[int]:
    """Return the position of the last round with a number whose models existed ``at``
    this time; none where there is none.
    """
    there = seconds_of(run, column) <= at
    known: list[int] = np.flatnonzero(there & np.isfinite(numbers)).tolist()
    return known[-1:]


def reached(
    run: Run, column: str, numbers: np.ndarray, measure: Measure, target: float
) -> Reached:
    """Find the time at which ``numbers`` [T] of a column first reached ``target``.

    target: in the unit in which numbers are shown.
    """
    seconds = seconds_of(run, column)
    wanted = measure.rank(target / measure.factor)
    for position, number in enumerate(numbers.tolist()):
        if measure.rank(number) >= wanted:  # NaN is not
            return Reached(float(seconds[position]), int(run.results.rounds[position]))
    return Reached(math.nan, None)
