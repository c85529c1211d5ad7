"""The writer of a run's results: small files by round, merged into ``metrics.h5`` at
checkpoints.

Several short rounds share a file. Merged results are on the disk twice, and the files
of rounds stay until both copies exist: one damaged file loses nothing.

Every file is published by rename and never changed afterwards. A reader can keep any
file open and never sees a partial round, and the writer never waits for a reader.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.files import atomic
from hpcfl.scores.metric_names import MetricName
from hpcfl.storage import client_numbers, results, results_form
from hpcfl.storage.client_numbers import OfSome, Values
from hpcfl.storage.result_rounds import outcome
from hpcfl.storage.results import Results, read

__all__ = ["MetricsWriter", "Results", "read"]

# a round's numbers by name
Recorded = Mapping[str, float | int | np.ndarray | OfSome]


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
        self.notes: list[str] = []
        self._header, self._static = header, static
        # the header of a round's file: the fingerprint of its run
        self._named = (
            {results.RUN: header[results.RUN]} if results.RUN in header else {}
        )
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._every, self._published = (
            every,
            -every,
        )  # seconds; the clock when a file was written last
        self._waiting: list[Results] = []  # recorded rounds that are not published yet
        self._has_merged = False
        with atomic.explained(self.folder):
            (self.folder / results.ROUNDS).mkdir(parents=True, exist_ok=True)
        for used in (self.folder / results.ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        self.merge()

    def record(self, round: int, values: Recorded) -> None:
        """Record one round, in place of its earlier values, and publish it if it is
        time.

        values: metrics by name. Those of clients, such as ``clients/pre/correct``, are
        ``OfSome`` or arrays [clients]. Raises ValueError for another number of clients
        than before, RunFailure.
        """
        self._take(round, values)
        if time.monotonic() - self._published >= self._every:
            self.publish()

    def conclude(self, round: int, values: Recorded) -> None:
        """Record the last round and merge, so that readers see it together with all
        others.

        Raises ValueError, RunFailure.
        """
        self._take(round, values)
        self.merge()

    def publish(self) -> None:
        """Publish every round recorded so far for readers. Raises RunFailure."""
        if not self._waiting:
            return
        rounds, values = results.merge(self._waiting)
        name = "-".join(f"{round:08d}" for round in sorted({rounds[0], rounds[-1]}))
        # A crash of the node may lose this file; the rounds after the checkpoint are
        # computed again then.
        atomic.write(
            self.folder / results.ROUNDS / f"{name}.h5",
            results.encode(Results(self._named, {}, rounds, values), packed=True),
            durable=False,
        )
        self._waiting, self._published = [], time.monotonic()

    def merge(self) -> None:
        """Merge all rounds into ``metrics.h5`` and its copy, durably.

        Call it before the checkpoint of the same round is committed, because a run that
        continues from it does not repeat earlier rounds. Raises RunFailure.
        """
        with atomic.explained(self.folder / results.ROUNDS):
            # not made again: if it vanished, its rounds are lost
            (self.folder / results.ROUNDS).stat()
        paths = results.listed(self.folder)
        parts = [
            *self._merged(),
            *(part for path in paths if (part := self._load(path))),
            *self._waiting,
        ]
        rounds, values = results.merge(parts)
        whole = Results(
            self._header, self._static, rounds, values, results.scored_after(parts)
        )
        data = results.encode(replace(whole, header={**whole.header, **outcome(whole)}))
        atomic.write(self.folder / results.COPY, data, durable=False)
        atomic.write(self.folder / results.MERGED, data)
        self._waiting, self._has_merged = [], True
        with atomic.explained(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)

    def _take(self, round: int, values: Recorded) -> None:
        of_round: dict[str, np.ndarray] = {}
        of_clients: dict[str, OfSome] = {}
        for name, value in values.items():
            if MetricName.parse(name).of_clients:
                of_clients[name] = self._of_clients(name, value)
            else:
                of_round[name] = results_form.long(np.asarray(value))[None]
                self._check_shape(name, of_round[name].shape[1:])
        numbers = client_numbers.of_round(of_clients)
        self._waiting.append(
            Results(rounds=np.array([round]), values=Values(of_round, numbers))
        )

    def _of_clients(self, name: str, value: Any) -> OfSome:
        """Return a metric of clients as ``OfSome``; an array [clients] has all clients."""
        if isinstance(value, OfSome):
            ids, numbers, clients = value.ids, value.numbers, value.clients
        else:
            numbers = np.asarray(value)
            clients = len(numbers)
            ids = np.arange(clients)
        self._check_shape(name, (clients,))
        return OfSome(ids, results_form.long(numbers), clients)

    def _merged(self) -> list[Results]:
        """Return the merged results; for a round in several parts, the last part
        counts.

        An earlier process may have been killed between the two files, so both are read.
        After this process has merged, the copy is needed only for a damaged file.
        """
        if self._has_merged and (newest := self._load(self.folder / results.MERGED)):
            return [newest]
        return [
            part
            for name in (results.COPY, results.MERGED)
            if (part := self._load(self.folder / name))
        ]

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError if a name has another shape than before."""
        if self._shapes.setdefault(name, shape) != shape:
            raise ValueError(
                f"metric '{name}' has shape {shape}, it had {self._shapes[name]} before"
            )

    def _load(self, path: Path) -> Results | None:
        """Return a file's results; None if it is missing or damaged.

        A damaged file is noted and set aside.
        """
        try:
            part = results.load_or_note(path, self.notes)
        except FileNotFoundError:
            return None
        if part is None:
            with atomic.explained(path):
                path.replace(path.with_name(path.name + ".damaged"))
        return part
