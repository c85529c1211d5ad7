"""Writing the results of a run: a small file per round, merged into ``metrics.h5`` at
checkpoints.

Several short rounds share a file. What was merged lies on the disk twice, and the files
of rounds stay until both copies are there: one damaged file loses nothing.

Every file is published by rename and never changed afterwards, so a reader can keep any
of them open for ever and never meets half a round, and the writer never waits for a
reader.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.files import atomic
from hpcfl.scores._metric_name import MetricName
from hpcfl.storage import client_numbers, results, results_form
from hpcfl.storage.client_numbers import OfSome, Values
from hpcfl.storage.moments import outcome
from hpcfl.storage.results import Results, read

__all__ = ["MetricsWriter", "Results", "read"]

# a round's numbers by name
Recorded = Mapping[str, float | int | np.ndarray | OfSome]


class MetricsWriter:
    """Writes the results of a run; on rank 0 only, one at a time for a folder."""

    def __init__(
        self,
        folder: str | Path,
        header: dict[str, Any],
        static: dict[str, np.ndarray],
        every: float = 0.0,
    ) -> None:
        """Open a run's results for writing; rounds that ``folder`` holds already stay
        in it.

        header: JSON-able entries. static: arrays that belong to no round, by name.
        every: seconds between files of rounds, at least, since writing one takes as
            long as a short round.

        ``notes`` then has a line for each damaged file, which was set aside as
        ``*.damaged``. Raises RunFailure.
        """
        self.folder = Path(folder)
        self.notes: list[str] = []
        self._header, self._static = header, static
        # what the file of a round says beside its numbers: whose they are
        self._named = (
            {results.RUN: header[results.RUN]} if results.RUN in header else {}
        )
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._every, self._published = (
            every,
            -every,
        )  # seconds; the clock when a file was written last
        self._waiting: list[
            Results
        ] = []  # rounds that were recorded and not published yet
        self._has_merged = False
        with atomic.explained(self.folder):
            (self.folder / results.ROUNDS).mkdir(parents=True, exist_ok=True)
        for used in (self.folder / results.ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        self.merge()

    def record(self, round: int, values: Recorded) -> None:
        """Take one round, in place of what was recorded for it before, and publish it
        if it is time.

        values: numbers by name; of clients, under a name such as
        ``clients/pre/correct``, ``OfSome`` or arrays [clients]. Raises ValueError for
        another number of clients than before, RunFailure.
        """
        self._take(round, values)
        if time.monotonic() - self._published >= self._every:
            self.publish()

    def conclude(self, round: int, values: Recorded) -> None:
        """Take the last round, as ``record`` does, and merge: readers see it only
        together with all others.

        Raises ValueError, RunFailure.
        """
        self._take(round, values)
        self.merge()

    def publish(self) -> None:
        """Let readers see every round recorded so far. Raises RunFailure."""
        if not self._waiting:
            return
        rounds, values = results.merge(self._waiting)
        name = "-".join(f"{round:08d}" for round in sorted({rounds[0], rounds[-1]}))
        # A crash of the node may take this file, but then the rounds after the
        # checkpoint are computed again anyway.
        atomic.write(
            self.folder / results.ROUNDS / f"{name}.h5",
            results.encode(Results(self._named, {}, rounds, values), packed=True),
            durable=False,
        )
        self._waiting, self._published = [], time.monotonic()

    def merge(self) -> None:
        """Merge all rounds into ``metrics.h5`` and its copy, safe on the disk when this
        returns.

        To be called before the checkpoint of the same round is committed, because a run
        that goes on from it does not repeat earlier rounds. Raises RunFailure.
        """
        with atomic.explained(self.folder / results.ROUNDS):
            # not made again: the rounds in it are lost where it vanished
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
        """A number of clients as that of some; of an array [clients] all have one."""
        if isinstance(value, OfSome):
            ids, numbers, clients = value.ids, value.numbers, value.clients
        else:
            numbers = np.asarray(value)
            clients = len(numbers)
            ids = np.arange(clients)
        self._check_shape(name, (clients,))
        return OfSome(ids, results_form.long(numbers), clients)

    def _merged(self) -> list[Results]:
        """What was merged so far; of a round in several parts the last one counts.

        An earlier process may have been killed between the two files, so both are read.
        Once this process has merged, the copy is needed only where the file is damaged.
        """
        if self._has_merged and (newest := self._load(self.folder / results.MERGED)):
            return [newest]
        return [
            part
            for name in (results.COPY, results.MERGED)
            if (part := self._load(self.folder / name))
        ]

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError for another shape than the name had before."""
        if self._shapes.setdefault(name, shape) != shape:
            raise ValueError(
                f"metric '{name}' has shape {shape}, it had {self._shapes[name]} before"
            )

    def _load(self, path: Path) -> Results | None:
        """What a file holds; None where it is missing, or damaged: then it is noted and
        set aside.
        """
        try:
            part = results.load_or_note(path, self.notes)
        except FileNotFoundError:
            return None
        if part is None:
            with atomic.explained(path):
                path.replace(path.with_name(path.name + ".damaged"))
        return part
