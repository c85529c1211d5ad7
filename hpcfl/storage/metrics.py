"""Writing of a run's results, and the rounds at which results are reported.

Results are small files by round, merged into ``metrics.h5`` at checkpoints. Several
short rounds share a file. Every file is published by rename and never changed
afterwards. Readers can keep any file open and never see a partial round; the writer
never waits for readers.

Results are reported at the best round, the last round, and the mean of the last tenth.
Taking the best round of a noisy metric overestimates it.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.errors import RunFailure
from hpcfl.experiment import measures
from hpcfl.files import atomic
from hpcfl.scores.metric_names import (
    Described,
    Measure,
    MetricName,
    name_newcomers,
    resolve,
)
from hpcfl.storage import results
from hpcfl.storage.results import NO_CLIENTS, ROUNDS, RUN, Metrics, Results

TAIL = 0.1  # share of rounds in the tail
# columns of newcomers, clients that never took part in training
BEFORE, AFTER = name_newcomers("before"), name_newcomers("after")


@dataclass(frozen=True)
class ResultRounds:
    """Positions of a run's rounds at which results are reported.

    Attributes:
        best: position of the best round.
        last: position of the last round with the metric.
        tail: positions of rounds with the metric in the last tenth.
    """

    best: int
    last: int
    tail: list[int]


def find_result_rounds(
    rounds: np.ndarray,
    numbers: np.ndarray,
    orient: Callable[[float], float],
    chosen: np.ndarray | None = None,
) -> ResultRounds | None:
    """Return the rounds at which a metric is reported, or None if it is missing.

    Args:
        rounds: numbers of the rounds [T].
        numbers: metric in each round [T]; NaN if missing.
        orient: function that returns higher numbers for better ones; of equal values
            the first is the best.
        chosen: other values [T] that determine the best round, such as those of
            validation samples; None to use ``numbers``.
    """
    chosen = numbers if chosen is None else chosen
    known = np.flatnonzero(np.isfinite(numbers))
    candidates = known[np.isfinite(chosen[known])]
    if not candidates.size:
        return None
    best = max(candidates.tolist(), key=lambda place: orient(float(chosen[place])))
    last = int(known[-1])
    first = rounds[last] - ceil(TAIL * rounds[last])  # the tail is after this round
    return ResultRounds(best, last, known[rounds[known] > first].tolist())


def find_positions(
    rounds: np.ndarray, numbers: np.ndarray, best: int | None, at: str
) -> list[int]:
    """Return the positions of the rounds at which a run's metric is read.

    If the best round lacks the metric, the latest round with the metric before it is
    used. The last round and the last tenth are determined among rounds with the metric.
    The result is empty without such rounds.

    Args:
        rounds: numbers of the rounds [T].
        numbers: metric in each round [T]; NaN if missing.
        best: number of the run's best round, or None.
        at: "best", "last" or "tail".
    """
    if best is None:
        return []
    counted = np.where(rounds <= best, numbers, np.nan) if at == "best" else numbers
    found = find_result_rounds(rounds, counted, float)
    if found is None:
        return []
    return found.tail if at == "tail" else [found.last]


def compute_client_scores(
    results: Results, column: str, score: str
) -> np.ndarray | None:
    """Return each client's score in a column, [T, clients]; None if not recorded.

    Args:
        results: results of a run.
        column: name of the column, such as "pre".
        score: name of the score.
    """
    numbers = compute_entry_scores(results.values, column, score)
    if numbers is None:
        return None
    return replace(results.values, columns={score: numbers})[score]


def compute_entry_scores(
    recorded: Metrics, column: str, score: str
) -> NDArray[np.float64] | None:
    """Return a score in a column for each entry, [N]; None if missing.

    Users' own scores are recorded under their names. Built-in scores are computed from
    other recorded metrics.

    Args:
        recorded: metrics of clients.
        column: name of the column, such as "pre".
        score: name of the score.
    """
    numbers = {}
    for text, values in recorded.columns.items():
        name = MetricName.parse(text)
        if name.column == column:
            numbers[name.number] = values.astype(float)
    known = measures.find_built_in(score)
    try:
        return known.of_clients(score, numbers) if known else numbers[score]
    except KeyError:
        return None


def list_scores(results: Results) -> dict[str, Described]:
    """Return descriptions of the scores in the results; by default the built-in ones."""
    return results.header.get("scores") or measures.describe(measures.list_built_in())


def find_primary(evaluation: dict[str, Any], results: Results) -> tuple[str, Measure]:
    """Return the column and the measure of the primary metric.

    Args:
        evaluation: section ``[evaluation]`` of the configuration.
        results: results of the run.
    """
    column = (
        results.header.get("primary", "pre")
        if evaluation["score"] == "method"
        else evaluation["score"]
    )
    metric = evaluation["metric"]
    measure = resolve(metric, list_scores(results))
    return column, measure or Measure(metric, "", metric)


class ResultsWriter:
    """Writer of a run's results: only on rank 0, and one at a time per folder."""

    def __init__(
        self,
        folder: str | Path,
        header: dict[str, Any],
        static: dict[str, np.ndarray],
        every: float = 0.0,
        rounds: int | None = None,
    ) -> None:
        """Open a run's results for writing; rounds in ``folder`` are kept.

        ``notes`` then has a line for each damaged file, which was renamed to
        ``*.damaged``.

        Args:
            folder: folder of the run.
            header: JSON-able entries.
            static: arrays that do not depend on rounds, by name.
            every: smallest time between two files of rounds, in seconds, because
                writing one takes as long as a short round.
            rounds: number of rounds of the run. Later rounds in ``folder``, which an
                attempt at more rounds has recorded, are dropped; None to keep all.

        Raises:
            RunFailure: The folder cannot be written.
        """
        self.folder = Path(folder)
        self._header, self._static = header, static
        self._every, self._published = every, -every  # seconds
        self._waiting: list[Results] = []  # recorded rounds that are not published yet
        with atomic.explain_errors(self.folder):
            # parents are not created: a missing run folder is a failure
            (self.folder / ROUNDS).mkdir(exist_ok=True)
            # The lock keeps a file of this folder open, so that its inode is stable.
            self._place = self.folder.stat()
        for used in (self.folder / ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        damaged: dict[Path, str] = {}
        paths = results.list_rounds(self.folder)
        found = results.load_all(self.folder, paths, damaged, header.get(RUN))
        self._all = [results.drop_later(part, rounds) for part in found]
        self.notes = list(damaged.values())
        for path in damaged:
            with atomic.explain_errors(path):
                path.replace(path.with_name(path.name + ".damaged"))
        self.merge()

    def record(
        self, round: int, values: Mapping[str, Any], clients: Metrics = NO_CLIENTS
    ) -> None:
        """Record one round, replacing earlier values, and publish it if ``every`` has
        passed.

        Args:
            round: number of the round.
            values: metrics of the round by name.
            clients: metrics of its clients.

        Raises:
            RunFailure: The file cannot be written.
        """
        self._take(round, values, clients)
        if time.monotonic() - self._published >= self._every:
            self.publish()

    def conclude(
        self, round: int, values: Mapping[str, Any], clients: Metrics = NO_CLIENTS
    ) -> None:
        """Record the last round and merge, so that all rounds become visible in one
        step.

        Arguments and errors are those of ``record``.
        """
        self._take(round, values, clients)
        self.merge()

    def _take(self, round: int, values: Mapping[str, Any], clients: Metrics) -> None:
        part = results.make_round(round, values, clients)
        self._waiting.append(part)
        self._all.append(part)

    def publish(self) -> None:
        """Publish all recorded rounds. Raises RunFailure."""
        if not self._waiting:
            return
        self._refuse_moved()
        part = results.merge(self._waiting)
        if RUN in self._header:
            part = replace(part, header={RUN: self._header[RUN]})
        name = "-".join(f"{round:08d}" for round in sorted({*part.rounds[[0, -1]]}))
        # A crash of the node may lose this file, but then the rounds after the
        # checkpoint are computed again.
        path = self.folder / ROUNDS / f"{name}.h5"
        atomic.write(path, results.encode(part), durable=False)
        self._waiting, self._published = [], time.monotonic()

    def merge(self) -> None:
        """Merge all rounds into ``metrics.h5``, durably.

        Call it before the checkpoint of the same round is committed, because a run that
        continues from the checkpoint does not repeat earlier rounds. Raises RunFailure.
        """
        self._refuse_moved()
        whole = replace(
            results.merge(self._all), header=self._header, static=self._static
        )
        atomic.write(self.folder / results.MERGED, results.encode(whole))
        self._all, self._waiting = [whole], []
        with atomic.explain_errors(self.folder):
            for path in results.list_rounds(self.folder):
                path.unlink(missing_ok=True)

    def _refuse_moved(self) -> None:
        """Raise RunFailure if the folder was moved or removed: its rounds are lost, or
        another run may have begun in its place.
        """
        with atomic.explain_errors(self.folder / ROUNDS):
            (self.folder / ROUNDS).stat()
            found = self.folder.stat()
        if not os.path.samestat(found, self._place):
            raise RunFailure(f"{self.folder}: was moved, and another folder is there")
