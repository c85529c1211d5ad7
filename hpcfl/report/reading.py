"""A number of a run by the name that a user gives it, in each round or where a run's
result is read.
"""

import math
from typing import NamedTuple

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import measures, plugins
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure, resolve
from hpcfl.storage import moments
from hpcfl.storage.moments import CLIENTS, positions

NEWCOMERS = "newcomers/"  # begins the names of their numbers
# the name for the number that counts, in the column that counts in each run, but on
# held-out training samples
VALIDATION = "validation"
NO_COLUMNS = (
    "recorded",
    "seconds",
)  # what stands before '/' in names of recorded numbers that are no scores


def read_at(metric: str, at: str) -> str:
    """Where a number is read: ``at``, but "last" for newcomers, who are scored once,
    after the last round.
    """
    return "last" if metric.startswith(NEWCOMERS) else at


class Number(NamedTuple):
    """A number of a run, and of how many clients it is, NaN if that was not recorded."""

    value: float
    clients: float


class Name(NamedTuple):
    """The recorded name of a number, and what it measures, None if it is no score's."""

    recorded: str
    measure: Measure | None

    @property
    def column(self) -> str:
        """Which models the number is of, such as ``post`` or ``newcomers/after``."""
        return self.recorded.rpartition("/")[0]


def named(run: Run, metric: str) -> Name:
    """What ``metric`` asks for in a run; see ``sweep_table.Reading``."""
    if metric == VALIDATION:
        return Name(f"{own_column(run, VALIDATION)}/{run.metric}", run.measure)
    if metric not in run.results.values:
        for wanted in (metric, metric.replace("-", "_")):
            if (measure := resolve(wanted, run.scores)) is not None:
                return Name(f"{run.score}/{measure.recorded}", measure)
    column, _, rest = metric.rpartition("/")
    return Name(metric, resolve(rest, run.scores) if column not in NO_COLUMNS else None)


def own_column(run: Run, column: str) -> str:
    """The column that counts in a run where ``column`` is "", the same on held-out
    samples where it is ``VALIDATION``, and any other one as it is.
    """
    if column == VALIDATION:
        return f"{measures.VALIDATION}{run.score}"
    return column or run.score


def holds_out(run: Run) -> bool:
    """Whether the run scored its models on held-out training samples too."""
    return named(run, VALIDATION).recorded in run.results.values


def refuse_unknown(runs: list[Run], metric: str) -> None:
    """Raise UserError where no run has such a number. One method may have it, and
    another not.
    """
    if not any(named(run, metric).recorded in _recorded(run) for run in runs):
        if metric == VALIDATION:
            raise UserError(
                f"{runs[0].folder}: --metric {VALIDATION}: this run holds out no training "
                "samples to be scored on; those with training.validation = 0.1 do"
            )
        held_out = [VALIDATION] if holds_out(runs[0]) else []
        known = sorted({*runs[0].scores, *_recorded(runs[0]), *held_out})
        hint = plugins.few(metric, known)
        raise UserError(f"{runs[0].folder}: --metric {metric}: not recorded{hint}")


def series(run: Run, metric: str) -> np.ndarray:
    """A number of a run in each round, float64 [T]; NaN where it was not recorded."""
    known = _recorded(run).get(named(run, metric).recorded)
    return (
        np.full(len(run.results.rounds), np.nan)
        if known is None
        else known.astype(float)
    )


def value(run: Run, metric: str, at: str) -> Number:
    """A number of a run, NaN if it was never recorded in a round that is asked for, and
    of how many clients.

    at: "best", "last" or "tail"; which rounds that are: ``moments.positions``.
    """
    numbers, read = series(run, metric), where_read(run, metric, at)
    if not read:
        return Number(math.nan, math.nan)
    clients = _recorded(run).get(
        f"{named(run, metric).column}/{CLIENTS}", np.full(len(numbers), np.nan)
    )
    return Number(float(numbers[read].mean()), float(clients[read].mean()))


def where_read(run: Run, metric: str, at: str) -> list[int]:
    """The positions of the rounds in which a number is read, none if it is not there.

    at: as for ``value``.
    """
    best = run.summary.best
    return positions(
        run.results.rounds,
        series(run, metric),
        best["round"] if best else None,
        read_at(metric, at),
    )


def of_clients(run: Run, column: str, measure: Measure, at: str) -> np.ndarray:
    """Each client's own number of the score that ``measure`` is of, [clients]; NaN for
    those without one.
    """
    numbers = moments.of_clients(run.results, column, measure.score)
    counted = run.results.values.get(f"{column}/{measure.recorded}")
    best = run.summary.best
    read = (
        []
        if numbers is None or counted is None
        else positions(
            run.results.rounds,
            counted.astype(float),
            best["round"] if best else None,
            read_at(column, at),
        )
    )
    if numbers is None or not read:
        return np.full(len(counts_of(run, "test")), np.nan)
    mean: np.ndarray = numbers[read].mean(axis=0)
    return mean


def counts_of(run: Run, part: str) -> np.ndarray:
    """A run's partition: int64 [clients, classes], samples in ``part``, "train" or
    "test".

    Raises UserError where the results do not say it any more.
    """
    try:
        return run.results.static[f"{part}_counts"]
    except KeyError:
        raise UserError(f"{run.folder}: its partition was not recorded") from None


def _recorded(run: Run) -> dict[str, np.ndarray]:
    """What was recorded once a round, [T] by name."""
    return {
        name: values for name, values in run.results.values.items() if values.ndim == 1
    }
