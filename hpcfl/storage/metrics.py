"""The writer of a run's results: small files by round, merged into ``metrics.h5`` at
checkpoints.

Several short rounds share a file. Every file is published by rename and never changed
afterwards. A reader can keep any file open and never sees a partial round, and the
writer never waits for a reader.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.files import atomic
from hpcfl.storage import results
from hpcfl.storage.result_rounds import outcome
from hpcfl.storage.results import NO_CLIENTS, ROUNDS, RUN, Metrics, Results, read

__all__ = ["MetricsWriter", "read"]


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
            (self.folder / ROUNDS).mkdir(parents=True, exist_ok=True)
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
        header = {**self._header, **outcome(whole)}
        atomic.write(
            self.folder / results.MERGED, results.encode(replace(whole, header=header))
        )
        self._all, self._waiting = [whole], []
        with atomic.explained(self.folder):
            for path in results.list_rounds(self.folder):
                path.unlink(missing_ok=True)
