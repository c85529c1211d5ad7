"""Runs with ``[time]`` along the clients' own time, not along rounds."""

import math
from dataclasses import dataclass

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.series import AXES, refuse_packed
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure


@dataclass(frozen=True)
class Reached:
    """When a number of a run was reached first.

    Attributes:
        seconds: of the clients' own time, NaN where it never was.
        round: None where it never was.
    """

    seconds: float
    round: int | None


def seconds_of(run: Run, column: str) -> np.ndarray:
    """After how many seconds of the clients' own the models of a column were there, [T].

    Raises UserError where the run does not say it.
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
    """The position of the last round whose models were there ``at`` so many seconds and
    that has a number, of ``numbers`` [T] of a column; none where there is none.
    """
    there = seconds_of(run, column) <= at
    known: list[int] = np.flatnonzero(there & np.isfinite(numbers)).tolist()
    return known[-1:]


def reached(
    run: Run, column: str, numbers: np.ndarray, measure: Measure, target: float
) -> Reached:
    """When ``numbers`` [T] of a column were as good as ``target`` for the first time.

    target: in the unit in which numbers are shown.
    """
    seconds = seconds_of(run, column)
    wanted = measure.rank(target / measure.factor)
    for position, number in enumerate(numbers.tolist()):
        if measure.rank(number) >= wanted:  # NaN is not
            return Reached(float(seconds[position]), int(run.results.rounds[position]))
    return Reached(math.nan, None)
