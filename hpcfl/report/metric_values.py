"""A number of a run by the name that a user gives it, in each round or where a run's
result is read.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import plugins
from hpcfl.scores.metric_names import (
    CLIENTS,
    NO_SCORES,
    TIME,
    Measure,
    MetricName,
    is_of_newcomers,
    name_held_out,
    resolve,
    strip_held_out,
)
from hpcfl.storage import metrics
from hpcfl.trained.run import Run

# the name for the number that counts, in the column that counts in each run, but on
# held-out training samples
VALIDATION = "validation"


# The round in which a number is read: "best", "last" or "tail" (see ``storage/metrics.py``),
# or after so many seconds of the clients' own time.
At = str | float


@dataclass(frozen=True)
class Reading:
    """The numbers that are read of runs.

    Attributes:
        metric: A recorded number such as ``post/mean`` or ``seconds/round``; or, in the
            column that counts, a score (``accuracy``), SCORE/SUMMARY, or a recorded
            name such as ``macro_f1_std``; "" for the one that counts in the first run;
            "validation" for the one that counts in each, on held-out training samples.
        at: Where it is read in a run: "best", "last" or "tail" (see
            ``storage/metrics.py``), or after so many seconds of the clients' own time.
        target: In place of the number the seconds of the clients' own time until it is
            as good as this, in the unit in which it is shown.
    """

    metric: str = ""
    at: At = "best"
    target: float | None = None

    def resolve(self, runs: list[Run]) -> "Reading":
        """Return the reading with the name of the metric, and at "last" for newcomers.

        Raises UserError where no run has such a number.
        """
        metric = self.metric or runs[0].metric
        refuse_unknown(runs, metric)
        return replace(self, metric=metric, at=read_at(metric, self.at))


# the primary metric of the first run, in the best round
BEST = Reading()


class Number(NamedTuple):
    """A number of a run with its number of clients, NaN if that was not recorded."""

    value: float
    clients: float


class Named(NamedTuple):
    """The recorded name of a number and its measure, None if it is no score's."""

    name: MetricName
    measure: Measure | None

    @property
    def column(self) -> str:
        """Return the models that were measured, such as ``post`` or ``newcomers/after``."""
        return self.name.column


def resolve_metric(run: Run, metric: str) -> Named:
    """Resolve the name of a metric in a run; see ``Reading``."""
    if metric == VALIDATION:
        return Named(MetricName(run.metric, name_held_out(run.score)), run.measure)
    if metric not in run.results.values:
        for wanted in (metric, metric.replace("-", "_")):
            measure = resolve(wanted, run.scores)
            if measure is not None:
                return Named(MetricName(measure.recorded, run.score), measure)
    name = MetricName.parse(metric)
    if name.column in NO_SCORES:
        return Named(name, None)
    return Named(name, resolve(name.number, run.scores))


def name_measure(measure: Measure) -> str:
    """Return a measure as texts call it: its score, with its kind if that is unusual."""
    kind = measure.kind.replace("_", " ")
    is_usual = kind in ("weighted", "mean")
    return measure.score if is_usual else f"{measure.score}, {kind}"


def read_at(metric: str, at: At) -> At:
    """Return ``at``, but "last" for newcomers, which are scored once, after the last
    round.
    """
    return "last" if is_of_newcomers(MetricName.parse(metric).column) else at


def find_client_measure(run: Run, metric: str) -> Measure:
    """Return the measure of a score that each client has. Raises UserError for other
    metrics.
    """
    measure = resolve_metric(run, metric).measure
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--metric {metric}: is no score that each client has; such as accuracy, loss"
        )
    return measure


def holds_out(run: Run) -> bool:
    """Tell whether the run scored its models on held-out training samples too."""
    return str(resolve_metric(run, VALIDATION).name) in run.results.values


def refuse_unknown(runs: list[Run], metric: str) -> None:
    """Raise UserError where no run has such a number."""
    for run in runs:
        if resolve_metric(run, metric).name in _recorded(run):
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
    hint = suggest(metric, sorted(known))
    for score in plugins.names("hpcfl.scores"):
        if score in metric.split("/") and score not in runs[0].scores:
            hint += f'; evaluation.scores = ["{score}"] records it'
    raise UserError(f"{folder}: --metric {metric}: not recorded{hint}")


def series(run: Run, metric: str) -> np.ndarray:
    """Return a number of a run in each round, float64 [T]; NaN where it is not recorded."""
    name = resolve_metric(run, metric).name
    if name.of_clients:
        return np.full(len(run.results.rounds), np.nan)
    return run.results.series(name).astype(float)


def value(run: Run, metric: str, at: At) -> Number:
    """Return a number of a run with its number of clients; NaN if no such round has it.

    Args:
        run: The run.
        metric: As for ``resolve_metric``.
        at: The rounds in which it is read.
    """
    column = resolve_metric(run, metric).column
    numbers = series(run, metric)
    positions = _positions(run, column, numbers, read_at(metric, at))
    if not positions:
        return Number(math.nan, math.nan)
    clients = run.results.series(MetricName(CLIENTS, column))
    return Number(float(numbers[positions].mean()), float(clients[positions].mean()))


def time_to(run: Run, metric: str, target: float) -> float:
    """Find the virtual seconds after which a score first reached ``target``, in the unit
    in which it is shown; NaN where it never did. Raises UserError.
    """
    name, measure = resolve_metric(run, metric)
    if measure is None or name.of_clients:
        raise UserError(f"--time-to: {metric} is no score that a run reaches")
    seconds = virtual_seconds(run, name.column)
    ranks = measure.rank(1.0) * series(run, metric)
    wanted = measure.rank(target / measure.factor)
    reached = seconds[ranks >= wanted]  # NaN is not
    return float(reached[0]) if len(reached) else math.nan


def virtual_seconds(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T].

    Raises UserError where they are not recorded.
    """
    refuse_packed(run)
    seconds = find_virtual_seconds(run, column)
    if np.isnan(seconds).all():
        raise UserError(
            f"{run.folder}: the clients' own time was not recorded; it is with [time], such "
            "as time.mode = 'synchronous'"
        )
    return seconds


def find_virtual_seconds(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T]; NaN without
    ``[time]``.
    """
    name = "seconds" if strip_held_out(column) == "post" else "started"
    seconds: np.ndarray = run.results.series(MetricName(name, TIME)).astype(float)
    return seconds


def refuse_packed(run: Run) -> None:
    """Raise UserError where most rounds of a run are not at hand."""
    if run.results.is_packed:
        raise UserError(
            f"{run.folder}: a packed file has the best and the last rounds alone; name the "
            "run's own folder"
        )


def where_scored(run: Run, column: str, at: At) -> list[int]:
    """Return the positions of the rounds in which the primary metric of a column is read."""
    numbers = run.results.series(MetricName(run.metric, column))
    return _positions(run, column, numbers, at)


def of_clients(run: Run, metric: str, at: At) -> np.ndarray:
    """Return each client's own number of a score, [clients]; NaN for those without one.

    It is read in the rounds in which the round's number is read.
    """
    name, measure = resolve_metric(run, metric)
    positions = _positions(run, name.column, series(run, metric), read_at(metric, at))
    numbers = None
    if measure is not None and positions:
        chosen = run.results.select_rounds(positions)
        numbers = metrics.compute_client_scores(chosen, name.column, measure.score)
    if numbers is None:
        clients = len(counts_of(run, "test"))
        return np.full(clients, np.nan)
    mean: np.ndarray = numbers.mean(axis=0)
    return mean


def counts_of(run: Run, part: str) -> np.ndarray:
    """Return a run's partition: int64 [clients, classes], samples in ``part``, "train" or
    "test". Raises UserError where the results lack it.
    """
    try:
        return run.results.static[f"{part}_counts"]
    except KeyError:
        raise UserError(f"{run.folder}: its partition was not recorded") from None


def _positions(run: Run, column: str, numbers: np.ndarray, at: At) -> list[int]:
    """Return the positions of the rounds in which ``numbers`` [T] of a column are read."""
    if not isinstance(at, str):
        known = (virtual_seconds(run, column) <= at) & np.isfinite(numbers)
        last: list[int] = np.flatnonzero(known)[-1:].tolist()
        return last
    best = run.summary.best
    best_round = best["round"] if best else None
    return metrics.find_positions(run.results.rounds, numbers, best_round, at)


def _recorded(run: Run) -> list[MetricName]:
    """Return the names of numbers that were recorded once a round."""
    return [name for name in run.results.names if not name.of_clients]
