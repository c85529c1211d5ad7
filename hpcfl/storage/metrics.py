"""Metrics: a small file per round, published by rename, merged into ``metrics.h5`` at checkpoints.

No file is ever changed after it was published, so a reader can keep any of them open for ever and never meets half a
round, and the writer never waits for a reader.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.storage import atomic, results
from hpcfl.storage.results import Results, read

__all__ = ["MetricsWriter", "Results", "read"]


class MetricsWriter:
    """Writes the results of a run; on rank 0 only, one at a time for a folder."""

    def __init__(self, folder: str | Path, header: dict[str, Any], static: dict[str, np.ndarray]) -> None:
        """``header``: JSON-able entries; ``static``: arrays. Rounds that ``folder`` holds already stay in it.

        ``notes`` has one line for each damaged file; it was set aside as ``*.damaged``. Raises RunFailure.
        """
        self.folder = Path(folder)
        self.notes: list[str] = []
        self._header, self._static = header, static
        self._shapes: dict[str, tuple[int, ...]] = {}
        with atomic.explained(self.folder):
            (self.folder / results.ROUNDS).mkdir(parents=True, exist_ok=True)
        for used in (self.folder / results.ROUNDS, self.folder):
            atomic.remove_temporaries(used)
        self.fold()

    def record(self, round: int, values: Mapping[str, float | int | np.ndarray]) -> None:
        """Publish one round, in place of what was recorded for it before.

        ``values``: name, a path such as ``clients/pre/correct``, → scalar or array, of the same shape in every round.
        Raises ValueError for another shape, RunFailure.
        """
        columns = {name: self._column(name, value) for name, value in values.items()}
        data = results.encode(Results(rounds=np.array([round]), values=columns), packed=True)
        # A crash of the node may take this file, but then the rounds after the checkpoint are computed again anyway.
        atomic.write(self.folder / results.ROUNDS / f"{round:08d}.h5", data, durable=False)

    def fold(self, finished: bool = False) -> None:
        """Merge the rounds into ``metrics.h5``, safe on the disk when this returns. Raises RunFailure.

        To be called before the checkpoint of the same round is committed: resuming does not repeat earlier rounds.
        """
        merged, paths = self.folder / results.MERGED, results.listed(self.folder)
        parts = [part for path in [merged, *paths] if (part := self._load(path))]
        rounds, values = results.merge(parts)
        atomic.write(merged, results.encode(Results(self._header, self._static, rounds, values, finished)))
        with atomic.explained(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)

    def _column(self, name: str, value: float | int | np.ndarray) -> np.ndarray:
        """The value as a column of one round, [1, ...]; whole numbers as int64, which can say -1 for missing."""
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
