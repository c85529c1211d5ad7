"""Read a metric of a run by its name, in each round or at the round of the result."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import plugins
from hpcfl.files.wording import list_first
from hpcfl.report.text import NAMED
from hpcfl.scores.metric_names import (
    CLIENTS,
    NO_SCORES,
    TIME,
    Measure,
    MetricName,
    has_scores,
    is_of_newcomers,
    is_trained,
    name_held_out,
    resolve,
)
from hpcfl.storage import metrics
from hpcfl.trained.run import Run

# name of the primary metric in each run's primary column, on held-out training samples
VALIDATION = "validation"


# The rounds at which a number is read: "best", "last" or "tail" (see
# ``storage/metrics.py``), or the latest round within a virtual time in seconds.
At = str | float


@dataclass(frozen=True)
class Reading:
    """A metric and the rounds at which it is read.

    Attributes:
        metric: Name of the metric: a recorded number such as ``post/mean`` or
            ``seconds/round``, COLUMN/SCORE (``post/accuracy``), or a score
            (``accuracy``), SCORE/SUMMARY or recorded name (``macro_f1_std``) in the
            primary column. "" means the primary metric of the
            first run; "validation" means each run's primary metric on held-out training
            samples.
        at: Rounds at which the metric is read: "best", "last" or "tail" (see
            ``storage/metrics.py``), or the latest round within a virtual time in
            seconds.
        target: Target in the displayed unit, or None. With a target the virtual seconds
            until the metric reached it are read instead.
    """

    metric: str = ""
    at: At = "best"
    target: float | None = None

    def resolve(self, runs: list[Run]) -> "Reading":
        """Return the reading with its defaults filled in, and "last" for newcomers.

        Raises:
            UserError: If no run has recorded the metric.
        """
        metric = self.metric or runs[0].metric
        resolve_recorded(runs, metric)
        return replace(self, metric=metric, at=choose_at(metric, self.at))


# primary metric of the first run in the best round
BEST = Reading()


class Number(NamedTuple):
    """A number of a run with its number of clients, NaN if that is not recorded."""

    value: float
    clients: float


class ResolvedMetric(NamedTuple):
    """The recorded name of a number with its measure, None if it is not a score."""

    name: MetricName
    measure: Measure | None

    @property
    def column(self) -> str:
        """Return the name of the scored models, such as ``post`` or ``newcomers/after``."""
        return self.name.column

    @property
    def factor(self) -> int:
        """Return the factor from the recorded to the displayed unit."""
        return self.measure.factor if self.measure else 1


def resolve_metric(run: Run, metric: str) -> ResolvedMetric:
    """Resolve the name of a metric in a run; see ``Reading``."""
    if metric == VALIDATION:
        return ResolvedMetric(
            MetricName(run.metric, name_held_out(run.score)), run.measure
        )
    if metric not in run.results.values:
        for wanted in (metric, metric.replace("-", "_")):
            measure = resolve(wanted, run.scores)
            if measure is not None:
                return ResolvedMetric(MetricName(measure.recorded, run.score), measure)
    name = MetricName.parse(metric)
    if name.column in NO_SCORES:
        return ResolvedMetric(name, None)
    measure = resolve(name.number, run.scores)
    if measure is not None and not name.of_clients:
        name = replace(name, number=measure.recorded)
    return ResolvedMetric(name, measure)


def describe_column(name: MetricName, metric: str) -> str:
    """Return the end of a score's name in a title.

    Args:
        name: Resolved name of the metric.
        metric: Name of the metric as the user gave it; its column is shown if it is
            part of this name.
    """
    if metric == VALIDATION:
        return " on held-out samples"
    return f" ({metric})" if metric.startswith(f"{name.column}/") else ""


def choose_at(metric: str, at: At) -> At:
    """Return the rounds at which a metric is read: "last" for newcomers, else ``at``.

    Newcomers are scored once, after the last round.
    """
    return "last" if is_of_newcomers(MetricName.parse(metric).column) else at


def find_client_measure(runs: Sequence[Run], metric: str) -> Measure:
    """Return the measure of a per-client score that a run has recorded.

    Raises:
        UserError: If no run has recorded the metric, or it is not such a score.
    """
    measure = resolve_recorded(runs, metric).measure
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--metric {metric}: is not a per-client score such as accuracy, loss"
        )
    return measure


def holds_out(run: Run) -> bool:
    """Return whether the run also scored its models on held-out training samples."""
    return str(resolve_metric(run, VALIDATION).name) in run.results.values


def describe_missing(labels: Iterable[str], metric: str) -> list[str]:
    """Return a note on runs without a value of a metric in the rounds that are read.

    Args:
        labels: Labels of these runs; empty for no note.
        metric: Name of the metric.
    """
    missing = list(dict.fromkeys(labels))
    return [f"no value of {metric}: {list_first(missing, NAMED)}"] if missing else []


def resolve_recorded(runs: Sequence[Run], metric: str) -> ResolvedMetric:
    """Resolve the name of a metric in the first run that has recorded it.

    Raises:
        UserError: If no run has recorded the metric.
    """
    for run in runs:
        named = resolve_metric(run, metric)
        if named.name in _list_recorded(run):
            return named
    folder = runs[0].folder
    if metric == VALIDATION:
        raise UserError(
            f"{folder}: --metric {VALIDATION}: this run scored no held-out training "
            "samples; set training.validation = 0.1 in the experiment and run it again"
        )
    known = {*runs[0].scores, *map(str, _list_recorded(runs[0]))}
    if holds_out(runs[0]):
        known.add(VALIDATION)
    hint = suggest(metric, sorted(known))
    for score in plugins.list_names("hpcfl.scores"):
        if score in metric.split("/") and score not in runs[0].scores:
            hint += f'; evaluation.scores = ["{score}"] records it'
    raise UserError(f"{folder}: --metric {metric}: not recorded{hint}")


def read_series(run: Run, metric: str) -> np.ndarray:
    """Return a metric of a run in each round, float64 [T]; NaN where it is not recorded."""
    name = resolve_metric(run, metric).name
    if name.of_clients:
        return np.full(len(run.results.rounds), np.nan)
    return run.results.get_series(name).astype(float)


def read_value(run: Run, metric: str, at: At) -> Number:
    """Return a metric of a run with its number of clients.

    Args:
        run: Run.
        metric: Name of the metric, as for ``resolve_metric``.
        at: Rounds at which the metric is read.

    Returns:
        Mean over the rounds; NaN if no such round has the metric.
    """
    name, measure = resolve_metric(run, metric)
    numbers = read_series(run, metric)
    positions = _find_positions(run, name.column, numbers, choose_at(metric, at))
    if not positions:
        return Number(math.nan, math.nan)
    clients = count_clients(run, name.column, measure, positions)
    return Number(float(numbers[positions].mean()), float(clients.mean()))


def count_clients(
    run: Run, column: str, measure: Measure | None, positions: list[int]
) -> np.ndarray:
    """Return the numbers of clients behind a score in some rounds, NaN if unknown.

    A score may be NaN for some of the scored clients.

    Args:
        run: Run.
        column: Column of the scored models.
        measure: Score; None for a number that is not a score.
        positions: Positions of the rounds.
    """
    rounds = run.results.select_rounds(positions)
    if measure is not None:
        name = MetricName(measure.score, column, of_clients=True)
        if name in rounds.names:
            counts: np.ndarray = np.isfinite(rounds.get_series(name)).sum(axis=1)
            return counts
    return rounds.get_series(MetricName(CLIENTS, column))


def find_time_to(run: Run, metric: str, target: float) -> float:
    """Return the virtual time in seconds after which a score first reached a target.

    Args:
        run: Run.
        metric: Name of the score, as for ``resolve_metric``.
        target: Target in the displayed unit.

    Returns:
        Seconds; NaN if the score never reached the target.

    Raises:
        UserError: If the metric is not a score, or virtual time was not recorded.
    """
    name, measure = resolve_metric(run, metric)
    if measure is None or name.of_clients:
        raise UserError(f"--time-to: {metric} is not a score of each round")
    seconds = read_virtual_seconds(run, name.column)
    oriented = measure.orient(1.0) * read_series(run, metric)
    # The decimal quotient of 72.4 and 100 equals 724 / 1000; 72.4 / 100 does not.
    wanted = measure.orient(float(Decimal(str(target)) / measure.factor))
    reached = seconds[oriented >= wanted]  # excludes NaN
    return float(reached[0]) if len(reached) else math.nan


def read_virtual_seconds(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T].

    Raises:
        UserError: If virtual time was not recorded.
    """
    refuse_packed(run)
    seconds = find_virtual_seconds(run, column)
    if np.isnan(seconds).all():
        raise UserError(
            f"{run.folder}: virtual time was not recorded; set time.mode = 'synchronous' "
            "in the experiment to record it"
        )
    return seconds


def find_virtual_seconds(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T].

    The values are NaN without ``[time]``.
    """
    name = "seconds" if is_trained(column) else "started"
    seconds: np.ndarray = run.results.get_series(MetricName(name, TIME)).astype(float)
    return seconds


def refuse_packed(run: Run) -> None:
    """Raise UserError for a packed run, which lacks most rounds."""
    if run.results.is_packed:
        raise UserError(
            f"{run.folder}: a packed file has only the best and the last rounds; pass the "
            "run's own folder"
        )


def find_scored(run: Run, column: str, at: At) -> list[int]:
    """Return the positions of the rounds at which a column's primary metric is read."""
    numbers = run.results.get_series(MetricName(run.metric, column))
    return _find_positions(run, column, numbers, at)


def read_clients(run: Run, metric: str, at: At) -> np.ndarray:
    """Return the score of each client at the rounds of the result.

    Args:
        run: Run.
        metric: Name of the score, as for ``resolve_metric``.
        at: Rounds at which the score is read, chosen by its value over all clients.

    Returns:
        Mean of each client's score over these rounds, [clients]; NaN for clients
        without a score in one of them.
    """
    name, measure = resolve_metric(run, metric)
    positions = _find_positions(
        run, name.column, read_series(run, metric), choose_at(metric, at)
    )
    numbers = None
    if measure is not None and positions:
        chosen = run.results.select_rounds(positions)
        numbers = metrics.compute_client_scores(chosen, name.column, measure.score)
    if numbers is None:
        clients = len(find_counts(run, "test"))
        return np.full(clients, np.nan)
    mean: np.ndarray = numbers.mean(axis=0)
    return mean


def find_counts(run: Run, part: str) -> np.ndarray:
    """Return the number of samples of each client and class, int64 [clients, classes].

    Args:
        run: Run.
        part: "train" or "test".

    Raises:
        UserError: If the results lack the partition.
    """
    try:
        return run.results.static[f"{part}_counts"]
    except KeyError:
        raise UserError(f"{run.folder}: its partition was not recorded") from None


def _find_positions(run: Run, column: str, numbers: np.ndarray, at: At) -> list[int]:
    """Return the positions of the rounds at which ``numbers`` [T] of a column are read."""
    if not isinstance(at, str):
        known = (read_virtual_seconds(run, column) <= at) & np.isfinite(numbers)
        last: list[int] = np.flatnonzero(known)[-1:].tolist()
        return last
    best = run.summary.best
    best_round = best["round"] if best else None
    rounds = run.results.rounds
    positions = metrics.find_positions(rounds, numbers, best_round, at)
    if at == "tail" and positions and not has_scores(column):
        count = math.ceil(metrics.TAIL * rounds[positions[-1]])
        if len(positions) < count:  # a packed file has only the scored rounds
            refuse_packed(run)
    return positions


def _list_recorded(run: Run) -> list[MetricName]:
    """Return the names of the numbers that are recorded once per round."""
    return [name for name in run.results.names if not name.of_clients]
