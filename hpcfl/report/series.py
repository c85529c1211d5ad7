"""Curves of a run over rounds, seconds or floats, and their mean over repetitions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from hpcfl.errors import UserError
from hpcfl.scores.metric_names import (
    FLOATS_UP,
    SECONDS,
    TIME,
    Measure,
    MetricName,
    models_of,
)
from hpcfl.trained.run import Run


def _rounds(run: Run, column: str) -> np.ndarray:
    """Return the rounds' numbers, [T]; the same for the models of every column."""
    rounds: np.ndarray = run.results.rounds.astype(float)
    return rounds


def _seconds(run: Run, column: str) -> np.ndarray:
    """Return the seconds until the models of a column existed, [T]."""
    seconds = run.results.series(MetricName("round", SECONDS))
    return _spent(seconds, column)


def _floats(run: Run, column: str) -> np.ndarray:
    """Return the floats to and from a client until the models of a column existed, [T]."""
    recorded = run.results.clients
    sent = recorded.columns.get(FLOATS_UP)
    up = np.full(len(run.results.rounds), np.nan)
    if sent is not None:
        # NaN for clients that sent nothing: the mean is over senders.
        senders = np.isfinite(sent)
        of_round, rounds = recorded.rounds[senders], len(up)
        count = np.bincount(of_round, minlength=rounds)
        total = np.bincount(of_round, weights=sent[senders], minlength=rounds)
        up = total / np.maximum(1, count)
    down = run.results.series(MetricName("floats_down"))
    travelled: np.ndarray = _spent(down, column) + _spent(up, column)
    return travelled


def _virtual(run: Run, column: str) -> np.ndarray:
    """Return the virtual seconds until the models of a column existed, [T]; NaN without
    ``[time]``.
    """
    name = "seconds" if models_of(column) == "post" else "started"
    places: np.ndarray = run.results.series(MetricName(name, TIME)).astype(float)
    return places


# A function that returns the rounds' positions on an axis, [T], for a column.
Positions = Callable[[Run, str], np.ndarray]
# By the name of an axis its label and its positions.
AXES: dict[str, tuple[str, Positions]] = {
    "rounds": ("round", _rounds),
    "seconds": ("seconds, scoring included", _seconds),
    "virtual": ("seconds of the clients' own time", _virtual),
    "floats": ("floats to and from a client that takes part in all rounds", _floats),
}


def refuse_packed(run: Run) -> None:
    """Raise UserError where most rounds of a run are not at hand."""
    if run.results.is_packed:
        raise UserError(
            f"{run.folder}: a packed file has the best and the last rounds alone; name the "
            "run's own folder"
        )


# A line is drawn by two points of each bucket, which is as fine as a screen is.
BUCKETS = 150
# Numbers from this size on, such as those of a model that diverges, are not drawn.
BEYOND = 1e100


@dataclass(frozen=True)
class Curve:
    """A number over rounds, seconds or floats, summarised over repetitions.

    Attributes:
        x: ``[N]``, ascending places along the axis.
        mean: ``[N]``, the mean over repetitions.
        std: ``[N]``, their sample standard deviation, 0 for a single repetition.
        runs: How many repetitions there are.
    """

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    runs: int

    def select(self, places: np.ndarray) -> "Curve":
        """Return the curve at some of its places only."""
        return Curve(self.x[places], self.mean[places], self.std[places], self.runs)


def over(
    runs: Sequence[Run], x: Sequence[np.ndarray], y: Sequence[np.ndarray]
) -> Curve:
    """Return the curve of repetitions, over the rounds in which every run has a number.

    Args:
        runs: The repetitions.
        x: Of each run the places of its rounds along the axis, ``[T]``; the curve's are
            their means over the runs.
        y: Of each run its numbers in these rounds, ``[T]``; NaN where it has none.
    """
    drawable_rounds = []
    for run, places, numbers in zip(runs, x, y, strict=True):
        is_drawable = (np.abs(numbers) < BEYOND) & (np.abs(places) < BEYOND)
        drawable_rounds.append(run.results.rounds[is_drawable])
    common_rounds = reduce(np.intersect1d, drawable_rounds)
    common_x = []
    common_y = []
    for run, places, numbers in zip(runs, x, y, strict=True):
        positions = np.searchsorted(run.results.rounds, common_rounds)
        common_x.append(places[positions])
        common_y.append(numbers[positions])
    repetitions = np.stack(common_y)  # [runs, N]
    return Curve(
        x=np.stack(common_x).mean(axis=0),
        mean=repetitions.mean(axis=0),
        std=deviation(repetitions),
        runs=len(runs),
    )


def deviation(repetitions: np.ndarray) -> np.ndarray:
    """Return the sample standard deviation over repetitions ``[runs, …]``, 0 for a
    single one.
    """
    spread: np.ndarray = np.zeros(repetitions.shape[1:])
    if len(repetitions) > 1:
        spread = repetitions.std(axis=0, ddof=1)
    return spread


def drawable(numbers: np.ndarray) -> np.ndarray:
    """Replace numbers that are too large to draw by NaN."""
    return np.where(np.abs(numbers) < BEYOND, numbers, np.nan)


def thinned(values: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """Return positions among values that suffice to draw them as a line.

    Args:
        values: ``[N]``.
        buckets: Into how many pieces of equal length the values are cut.

    Returns:
        Ascending positions: the lowest and the highest value of each bucket, the first
        and the last value. All N where there are at most two values for each bucket.
    """
    count = len(values)
    if count <= 2 * buckets:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(int)
    positions = {0, count - 1}
    for start, end in pairwise(edges):
        bucket = values[start:end]
        lowest = start + bucket.argmin()
        highest = start + bucket.argmax()
        positions.update((int(lowest), int(highest)))
    return np.array(sorted(positions))


def _spent(cost: np.ndarray, column: str) -> np.ndarray:
    """Return the cost until the models of a column existed.

    Args:
        cost: ``[T]``, what each round costs.
        column: Which models. Only those after local training include the cost of their
            own round; all others are there when the rounds before are over.

    Returns:
        ``[T]``; NaN where the cost was never recorded.
    """
    if np.isnan(cost).all():
        return cost
    total: np.ndarray = np.nancumsum(cost.astype(float))
    if models_of(column) == "post":
        return total
    before: np.ndarray = total - np.nan_to_num(cost)
    return before


@dataclass(frozen=True)
class Reached:
    """The time at which a number of a run was reached first.

    Attributes:
        seconds: of the clients' own time, NaN where it never was.
        round: None where it never was.
    """

    seconds: float
    round: int | None


def virtual_seconds(run: Run, column: str) -> np.ndarray:
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


def find_position_at(
    run: Run, column: str, numbers: np.ndarray, at: float
) -> list[int]:
    """Return the position of the last round with a number whose models existed ``at``
    this time; none where there is none.
    """
    there = virtual_seconds(run, column) <= at
    known: list[int] = np.flatnonzero(there & np.isfinite(numbers)).tolist()
    return known[-1:]


def find_reached(
    run: Run, column: str, numbers: np.ndarray, measure: Measure, target: float
) -> Reached:
    """Find the time at which ``numbers`` [T] of a column first reached ``target``.

    target: in the unit in which numbers are shown.
    """
    seconds = virtual_seconds(run, column)
    wanted = measure.rank(target / measure.factor)
    for position, number in enumerate(numbers.tolist()):
        if measure.rank(number) >= wanted:  # NaN is not
            return Reached(float(seconds[position]), int(run.results.rounds[position]))
    return Reached(math.nan, None)
