"""The writer of a run's results: small files by round, merged into ``metrics.h5`` at
checkpoints; and the rounds at which a result is read: the best, the last, the last tenth.

Several short rounds share a file. Every file is published by rename and never changed
afterwards. A reader can keep any file open and never sees a partial round, and the
writer never waits for a reader.

Taking the best round of a noisy metric overestimates it; the others do not.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfl.experiment import measures
from hpcfl.files import atomic
from hpcfl.scores.metric_names import (
    CLIENTS,
    Described,
    Measure,
    MetricName,
    name_newcomers,
    resolve,
)
from hpcfl.storage import results
from hpcfl.storage.results import NO_CLIENTS, ROUNDS, RUN, Metrics, Results

TAIL = 0.1  # share of the rounds
# columns of clients that were never trained with
BEFORE, AFTER = name_newcomers("before"), name_newcomers("after")


@dataclass(frozen=True)
class ResultRounds:
    """Positions among a run's rounds: the best, the last with the metric, and the last
    tenth.
    """

    best: int
    last: int
    tail: list[int]


def find_result_rounds(
    rounds: np.ndarray,
    numbers: np.ndarray,
    rank: Callable[[float], float],
    chosen: np.ndarray | None = None,
) -> ResultRounds | None:
    """Return the result rounds of ``numbers`` [T], or None if all are missing.

    Args:
        numbers: The metric in each of ``rounds`` [T]; NaN where it is missing.
        rank: Orders numbers, higher for a better one; of equals the first is the best.
        chosen: The numbers [T] that choose the best round, if others, such as those of
            validation samples.
    """
    chosen = numbers if chosen is None else chosen
    known = np.flatnonzero(np.isfinite(numbers))
    candidates = known[np.isfinite(chosen[known])]
    if not candidates.size:
        return None
    best = max(candidates.tolist(), key=lambda position: rank(float(chosen[position])))
    last = int(known[-1])
    first = rounds[last] - ceil(TAIL * rounds[last])  # the tail is after this round
    return ResultRounds(best, last, known[rounds[known] > first].tolist())


def find_positions(
    rounds: np.ndarray, numbers: np.ndarray, best: int | None, at: str
) -> list[int]:
    """Return the positions of the rounds at which ``numbers`` [T] of a run are read.

    best: the run's best round. at: "best", "last" or "tail". If the best round lacks
    the metric, the latest round before it counts. The last round and the last tenth
    consist of rounds with the metric. The result is empty without such rounds.
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
    """Return each client's score in a column, [T, clients]; None if it was not
    recorded.
    """
    numbers = compute_entry_scores(results.values, column, score)
    if numbers is None:
        return None
    return replace(results.values, columns={score: numbers})[score]


def compute_entry_scores(
    recorded: Metrics, column: str, score: str
) -> NDArray[np.float64] | None:
    """Return a score in a column for each entry of ``recorded``, [N]; None if missing.

    A user's own score is recorded under its name; a built-in score is computed from
    other recorded metrics.
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
    """Return the scores that the results list; by default the built-in ones."""
    return results.header.get("scores") or measures.describe(measures.built_in())


def find_primary(evaluation: dict[str, Any], results: Results) -> tuple[str, Measure]:
    """Return the primary column and the measure of its primary metric.

    evaluation: the section of the configuration.
    """
    column = (
        results.header.get("primary", "pre")
        if evaluation["score"] == "method"
        else evaluation["score"]
    )
    metric = evaluation["metric"]
    measure = resolve(metric, list_scores(results))
    return column, measure or Measure(metric, "", metric)


def describe_outcome(results: Results) -> dict[str, Any]:
    """Return the header entry ``outcome``, the primary metric at the result rounds, or {}."""
    if "config" not in results.header:
        return {}
    column, measure = find_primary(results.header["config"]["evaluation"], results)
    name = MetricName(measure.recorded, column)
    numbers = results.series(name)
    chosen_in = measures.chosen_in(results.header["config"], column)
    chosen = results.series(MetricName(measure.recorded, chosen_in))
    found = find_result_rounds(results.rounds, numbers, measure.rank, chosen)
    if found is None:
        return {}
    clients = results.series(MetricName(CLIENTS, column))

    def summarise(positions: list[int]) -> dict[str, Any]:
        count = float(clients[positions].mean())
        return {
            "rounds": [
                int(results.rounds[positions[0]]),
                int(results.rounds[positions[-1]]),
            ],
            "value": float(numbers[positions].mean()),
            "clients": count if np.isfinite(count) else None,
        }

    return {
        "outcome": {
            "name": str(name),
            "best": summarise([found.best]),
            "last": summarise([found.last]),
            "tail": summarise(found.tail),
        }
    }


class MetricsWriter:
    """The writer of a run's results; on rank 0 only, one at a time for a folder."""

    def __init__(
        self,
        folder: str | Path,
        header: dict[str, Any],
        static: dict[str, np.ndarray],
        every: float = 0.0,
    ) -> None:
        """Open a run's results for writing; rounds that ``folder`` holds already stay.

        header: JSON-able entries. static: arrays that belong to no round, by name.
        every: the least number of seconds between files of rounds, since writing one
        takes as long as a short round.

        ``notes`` then has a line for each damaged file, which was set aside as
        ``*.damaged``. Raises RunFailure.
        """
        self.folder = Path(folder)
        self._header, self._static = header, static
        self._every, self._published = every, -every  # seconds
        self._waiting: list[Results] = []  # recorded rounds that are not published yet
        with atomic.explained(self.folder):
            # not its parents: a run's folder that vanished is a failure
            (self.folder / ROUNDS).mkdir(exist_ok=True)
        for used in (self.folder / ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        damaged: dict[Path, str] = {}
        paths = results.list_rounds(self.folder)
        self._all = results.load_all(self.folder, paths, damaged, header.get(RUN))
        self.notes = list(damaged.values())
        for path in damaged:
            with atomic.explained(path):
                path.replace(path.with_name(path.name + ".damaged"))
        self.merge()

    def record(
        self, round: int, values: Mapping[str, Any], clients: Metrics = NO_CLIENTS
    ) -> None:
        """Record one round, in place of its earlier values, and publish it if it is
        time.

        values: metrics of the round by name. clients: those of its clients. Raises
        RunFailure.
        """
        self._take(round, values, clients)
        if time.monotonic() - self._published >= self._every:
            self.publish()

    def conclude(
        self, round: int, values: Mapping[str, Any], clients: Metrics = NO_CLIENTS
    ) -> None:
        """Record the last round and merge, so that readers see it together with all
        others.

        Raises RunFailure.
        """
        self._take(round, values, clients)
        self.merge()

    def _take(self, round: int, values: Mapping[str, Any], clients: Metrics) -> None:
        part = results.make_round(round, values, clients)
        self._waiting.append(part)
        self._all.append(part)

    def publish(self) -> None:
        """Publish every round recorded so far for readers. Raises RunFailure."""
        if not self._waiting:
            return
        part = results.merge(self._waiting)
        if RUN in self._header:
            part = replace(part, header={RUN: self._header[RUN]})
        name = "-".join(f"{round:08d}" for round in sorted({*part.rounds[[0, -1]]}))
        # A crash of the node may lose this file; the rounds after the checkpoint are
        # computed again then.
        path = self.folder / ROUNDS / f"{name}.h5"
        atomic.write(path, results.encode(part), durable=False)
        self._waiting, self._published = [], time.monotonic()

    def merge(self) -> None:
        """Merge all rounds into ``metrics.h5``, durably.

        Call it before the checkpoint of the same round is committed, because a run that
        continues from it does not repeat earlier rounds. Raises RunFailure.
        """
        with atomic.explained(self.folder / ROUNDS):
            # not made again: if it vanished, its rounds are lost
            (self.folder / ROUNDS).stat()
        whole = replace(
            results.merge(self._all), header=self._header, static=self._static
        )
        header = {**self._header, **describe_outcome(whole)}
        atomic.write(
            self.folder / results.MERGED, results.encode(replace(whole, header=header))
        )
        self._all, self._waiting = [whole], []
        with atomic.explained(self.folder):
            for path in results.list_rounds(self.folder):
                path.unlink(missing_ok=True)
