"""Metrics: a small file per round, or for some short ones, published by rename, merged into ``metrics.h5``
at checkpoints.

What was merged lies on the disk twice, and a round's own file stays until both are there: one damaged
file loses nothing.

No file is ever changed after it was published, so a reader can keep any of them open for ever and never meets
half a round, and the writer never waits for a reader.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.files import atomic
from hpcfl.storage import results
from hpcfl.storage.results import Results, read

__all__ = ["MetricsWriter", "Results", "read"]


class MetricsWriter:
    """Writes the results of a run; on rank 0 only, one at a time for a folder."""

    def __init__(self, folder: str | Path, header: dict[str, Any], static: dict[str, np.ndarray],
                 every: float = 0.0) -> None:
        """``header``: JSON-able entries; ``static``: arrays. Rounds that ``folder`` holds already stay in it.

        Rounds are published once ``every`` seconds, several in one file, for a file takes as long
        as a short round. ``notes`` has one line for each damaged file; it was set aside as ``*.damaged``.
        Raises RunFailure.
        """
        self.folder = Path(folder)
        self.notes: list[str] = []
        self._header, self._static = header, static
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._every, self._published = every, -every
        self._waiting: list[Results] = []
        self._folded = False
        with atomic.explained(self.folder):
            (self.folder / results.ROUNDS).mkdir(parents=True, exist_ok=True)
        for used in (self.folder / results.ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        self.fold()

    def record(self, round: int, values: Mapping[str, float | int | np.ndarray]) -> None:
        """Take one round, in place of what was recorded for it before, and publish it if it is time.

        ``values``: name, a path such as ``clients/pre/correct``, → scalar or array, of the same shape
        in every round. Raises ValueError for another shape, RunFailure.
        """
        self._take(round, values)
        if time.monotonic() - self._published >= self._every:
            self.publish()

    def conclude(self, round: int, values: Mapping[str, float | int | np.ndarray]) -> None:
        """Take the last round, as ``record`` does; it is there for readers only with all that was merged.
        Raises RunFailure."""
        self._take(round, values)
        self.fold()

    def publish(self) -> None:
        """Let readers see every round recorded so far. Raises RunFailure."""
        if not self._waiting:
            return
        rounds, values = results.merge(self._waiting)
        name = "-".join(f"{round:08d}" for round in sorted({rounds[0], rounds[-1]}))
        # A crash of the node may take this file, but then the rounds after the checkpoint are computed
        # again anyway.
        atomic.write(self.folder / results.ROUNDS / f"{name}.h5",
                     results.encode(Results(rounds=rounds, values=values), packed=True), durable=False)
        self._waiting, self._published = [], time.monotonic()

    def fold(self) -> None:
        """Merge the rounds into ``metrics.h5`` and its copy, safe on the disk when this returns.
        Raises RunFailure.

        To be called before the checkpoint of the same round is committed: resuming does not repeat
        earlier rounds.
        """
        paths = results.listed(self.folder)
        parts = [*self._merged(), *(part for path in paths if (part := self._load(path))), *self._waiting]
        rounds, values = results.merge(parts)
        data = results.encode(Results(self._header, self._static, rounds, values,
                                      results.scored_after(parts)))
        atomic.write(self.folder / results.COPY, data, durable=False)
        atomic.write(self.folder / results.MERGED, data)
        self._waiting, self._folded = [], True
        with atomic.explained(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)

    def _take(self, round: int, values: Mapping[str, float | int | np.ndarray]) -> None:
        columns = {name: self._column(name, value) for name, value in values.items()}
        self._waiting.append(Results(rounds=np.array([round]), values=columns))

    def _merged(self) -> list[Results]:
        """What was merged so far, the part that counts last. Of an earlier process, which may have
        been killed between the two files, both count; of this one the copy is needed only where the
        file is damaged."""
        if self._folded and (newest := self._load(self.folder / results.MERGED)):
            return [newest]
        return [part for name in (results.COPY, results.MERGED) if (part := self._load(self.folder / name))]

    def _column(self, name: str, value: float | int | np.ndarray) -> np.ndarray:
        """The value as a column of one round, [1, ...]; whole numbers as int64, which can say
        -1 for missing."""
        array = np.asarray(value)
        if self._shapes.setdefault(name, array.shape) != array.shape:
            raise ValueError(f"metric '{name}' has shape {array.shape}, it had {self._shapes[name]} before")
        return (array if array.dtype.kind == "f" else array.astype(np.int64))[None]

    def _load(self, path: Path) -> Results | None:
        try:
            part = results.load_or_note(path, self.notes)
        except FileNotFoundError:
            return None
        if part is None:
            with atomic.explained(path):
                path.replace(path.with_name(path.name + ".damaged"))
        return part
