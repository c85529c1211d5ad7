"""Curves of a run over rounds, seconds or floats, and their mean over repetitions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from hpcfl.report.summary import Run
from hpcfl.scores._metric_name import SECONDS, MetricName, models_of


def _rounds(run: Run, column: str) -> np.ndarray:
    rounds: np.ndarray = run.results.rounds.astype(float)
    return rounds


def _seconds(run: Run, column: str) -> np.ndarray:
    return _spent(run.results.series(MetricName("round", SECONDS)), column)


def _floats(run: Run, column: str) -> np.ndarray:
    floats_up = MetricName("floats_up", of_clients=True)
    sent = run.results.series(floats_up)
    if floats_up in run.results.names:  # the mean over those who sent any
        senders = np.isfinite(sent).sum(axis=1)
        sent = np.nansum(sent, axis=1) / np.maximum(1, senders)
    down = run.results.series(MetricName("floats_down"))
    travelled: np.ndarray = _spent(down, column) + _spent(sent, column)
    return travelled


# by name: the label, and the places [T] of rounds, for the models of a column
AXES: dict[str, tuple[str, Callable[[Run, str], np.ndarray]]] = {
    "rounds": ("round", _rounds),
    "seconds": ("seconds, scoring included", _seconds),
    "floats": ("floats to and from a client that takes part in all rounds", _floats),
}
BUCKETS = 150  # of points along a line, two points each: what a screen shows
BEYOND = 1e100  # numbers that nobody can draw, such as those of a model that diverges


@dataclass(frozen=True)
class Curve:
    """A number at N places along an axis: its mean and standard deviation over
    repetitions, [N] each.

    runs: how many repetitions there are.
    """

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    runs: int

    def at(self, places: np.ndarray) -> "Curve":
        """The same at some of its places only."""
        return Curve(self.x[places], self.mean[places], self.std[places], self.runs)


def over(
    runs: Sequence[Run], x: Sequence[np.ndarray], y: Sequence[np.ndarray]
) -> Curve:
    """The curve of the repetitions ``runs``, each with its own ``x`` [T] and ``y`` [T],
    NaN where none is.

    Rounds count in which every run has both; places along the axis are means over the
    runs as well.
    """
    known_rounds = []
    for run, places, numbers in zip(runs, x, y, strict=True):
        known = (np.abs(numbers) < BEYOND) & (np.abs(places) < BEYOND)
        known_rounds.append(run.results.rounds[known])
    rounds = reduce(np.intersect1d, known_rounds)
    rows = [np.searchsorted(run.results.rounds, rounds) for run in runs]
    places = np.stack([of_run[row] for of_run, row in zip(x, rows, strict=True)])
    numbers = np.stack([of_run[row] for of_run, row in zip(y, rows, strict=True)])
    return Curve(
        places.mean(axis=0),
        numbers.mean(axis=0),
        numbers.std(axis=0),
        len(runs),
    )


def drawable(numbers: np.ndarray) -> np.ndarray:
    """The numbers, NaN in place of those that nobody can draw."""
    return np.where(np.abs(numbers) < BEYOND, numbers, np.nan)


def thinned(values: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """Positions among ``values`` [N] that suffice to draw them: of each bucket the
    lowest and the highest.

    The first and the last are always there; N values in fewer than two for each bucket
    all are.
    """
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(int)
    chosen = {0, len(values) - 1}
    for first, end in pairwise(edges):
        bucket = values[first:end]
        chosen.add(int(first + bucket.argmin()))
        chosen.add(int(first + bucket.argmax()))
    return np.array(sorted(chosen))


def _spent(each: np.ndarray, column: str) -> np.ndarray:
    """What had been spent when the models of a column were there, [T]; NaN where that
    was never recorded.

    each: what each round costs, [T]. Only models after local training need their own
    round; all others are there when the rounds before are over.
    """
    if np.isnan(each).all():
        return each
    total: np.ndarray = np.nancumsum(each.astype(float))
    trained = models_of(column) == "post"
    return total if trained else total - np.nan_to_num(each)
