"""A number of a run by the name that a user gives it, in each round or where a run's
result is read.
"""

import math
from typing import NamedTuple

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import virtual_time
from hpcfl.report.summary import Run
from hpcfl.report.virtual_time import Reached
from hpcfl.scores._described import Measure, resolve
from hpcfl.scores._metric_name import (
    CLIENTS,
    NO_SCORES,
    MetricName,
    held_out,
    is_of_newcomers,
    tuned,
)
from hpcfl.storage import result_rounds

# the name for the number that counts, in the column that counts in each run, but on
# held-out training samples
VALIDATION = "validation"


# Where a number is read in a run: "best", "last" or "tail" (see ``storage/result_rounds.py``),
# or after so many seconds of the clients' own time.
At = str | float


class Number(NamedTuple):
    """A number of a run, and of how many clients it is, NaN if that was not recorded."""

    value: float
    clients: float


class Named(NamedTuple):
    """What a number is recorded as, and what it measures, None if it is no score's."""

    name: MetricName
    measure: Measure | None

    @property
    def column(self) -> str:
        """Which models the number is of, such as ``post`` or ``newcomers/after``."""
        return self.name.column


def named(run: Run, metric: str) -> Named:
    """What ``metric`` asks for in a run; see ``sweep_table.Reading``."""
    if metric == VALIDATION:
        return Named(MetricName(run.metric, held_out(run.score)), run.measure)
    if metric not in run.results.values:
        for wanted in (metric, metric.replace("-", "_")):
            measure = resolve(wanted, run.scores)
            if measure is not None:
                return Named(MetricName(measure.recorded, run.score), measure)
    name = MetricName.parse(metric)
    if name.column in NO_SCORES:
        return Named(name, None)
    return Named(name, resolve(name.number, run.scores))


def tuned_in(run: Run) -> list[str]:
    """The columns of start models after some epochs of plain training at scoring, which
    are one moment that is the same for every method.
    """
    epochs = run.config.get("evaluation", {}).get("tune_epochs", [])
    return list(map(tuned, epochs))


def read_at(metric: str, at: At) -> At:
    """Where a number is read: ``at``, but "last" for newcomers, who are scored once,
    after the last round.
    """
    return "last" if is_of_newcomers(MetricName.parse(metric).column) else at


def own_column(run: Run, column: str) -> str:
    """The column that counts in a run where ``column`` is "", the same on held-out
    samples where it is ``VALIDATION``, and any other one as it is.
    """
    if column == VALIDATION:
        return held_out(run.score)
    return column or run.score


def holds_out(run: Run) -> bool:
    """Whether the run scored its models on held-out training samples too."""
    return str(named(run, VALIDATION).name) in run.results.values


def refuse_unknown(runs: list[Run], metric: str) -> None:
    """Raise UserError where no run has such a number. One method may have it, and
    another not.
    """
    for run in runs:
        if named(run, metric).name in _recorded(run):
            return
    folder = runs[0].folder
    if metric == VALIDATION:
        raise UserError(
            f"{folder}: --metric {VALIDATION}: this run holds out no training samples "
            "to be scored on; those with training.validation = 0.1 do"
        )
    known = {*runs[0].scores, *map(str, _recorded(runs[0]))}
    if holds_out(runs[0]):
        known.add(VALIDATION)
    hint = plugins.suggest_from_many(metric, sorted(known))
    for score in plugins.names("hpcfl.scores"):
        if score in metric.split("/") and score not in runs[0].scores:
            hint += f'; evaluation.scores = ["{score}"] records it'
    raise UserError(f"{folder}: --metric {metric}: not recorded{hint}")


def series(run: Run, metric: str) -> np.ndarray:
    """A number of a run in each round, float64 [T]; NaN where it was not recorded."""
    name = named(run, metric).name
    if name.of_clients:
        return np.full(len(run.results.rounds), np.nan)
    return run.results.series(name).astype(float)


def value(run: Run, metric: str, at: At) -> Number:
    """A number of a run, and of how many clients it is; NaN if it was not recorded in
    any round that is asked for.

    Args:
        run: Whose number.
        metric: As for ``named``.
        at: In which rounds.
    """
    positions = where_read(run, metric, at)
    if not positions:
        return Number(math.nan, math.nan)
    numbers = series(run, metric)[positions]
    column = named(run, metric).column
    clients = run.results.series(MetricName(CLIENTS, column))[positions]
    return Number(float(numbers.mean()), float(clients.mean()))


def time_to(run: Run, metric: str, target: float) -> Reached:
    """When a score of a run was as good as ``target``, in the unit in which it is shown,
    for the first time on the clients' own clock. Raises UserError.
    """
    name, measure = named(run, metric)
    if measure is None or name.of_clients:
        raise UserError(f"--time-to: {metric} is no score that a run reaches")
    numbers = series(run, metric)
    return virtual_time.reached(run, name.column, numbers, measure, target)


def where_read(run: Run, metric: str, at: At) -> list[int]:
    """The positions of the rounds in which a number is read, none if it is not there."""
    column = named(run, metric).column
    return _positions(run, column, series(run, metric), read_at(metric, at))


def where_scored(run: Run, column: str, at: At) -> list[int]:
    """The positions of the rounds in which the number that counts is read of a column."""
    numbers = run.results.series(MetricName(run.metric, column))
    return _positions(run, column, numbers, at)


def of_clients(run: Run, column: str, measure: Measure, at: At) -> np.ndarray:
    """Each client's own number of the score that ``measure`` is of, [clients]; NaN for
    those without one.

    The rounds are those in which the round's number is read.
    """
    of_round = run.results.series(MetricName(measure.recorded, column)).astype(float)
    # Newcomers are scored once, after the last round.
    slot: At = "last" if is_of_newcomers(column) else at
    positions = _positions(run, column, of_round, slot)
    where_read = run.results.select_rounds(positions)
    numbers = result_rounds.compute_client_scores(where_read, column, measure.score)
    if numbers is None or not positions:
        clients = len(counts_of(run, "test"))
        return np.full(clients, np.nan)
    mean: np.ndarray = numbers.mean(axis=0)
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


def _positions(run: Run, column: str, numbers: np.ndarray, at: At) -> list[int]:
    """The positions of the rounds in which ``numbers`` [T] of a column are read."""
    if not isinstance(at, str):
        return virtual_time.until(run, column, numbers, at)
    best = run.summary.best
    best_round = best["round"] if best else None
    return result_rounds.positions(run.results.rounds, numbers, best_round, at)


def _recorded(run: Run) -> list[MetricName]:
    """The names of what was recorded once a round."""
    return [name for name in run.results.names if not name.of_clients]
