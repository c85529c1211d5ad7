"""The contract of a tracker, and the threads in which trackers write.

A tracker writes a run's metrics in the format of another tool. It runs in a separate
thread, so that it can neither delay a run nor make it fail.
"""

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, user_code

# rounds with their values, and None at the end
Queue = SimpleQueue[tuple[int, Mapping[str, Any]] | None]
PACKAGE = "hpcfl.tracking"
ID = "id"  # file with the id of a run, in the folder of a tracker
PATIENCE = 10.0  # seconds that a run waits at its end for trackers to finish


class Tracker(ABC):
    """Contract of a tracker.

    A thread of rank 0 calls every method; the run does not wait for it. An exception
    ends the tracker and not the run.

    Attributes:
        package: import name of the required package; "" if none is required. For
            trackers of hpcfl an extra has the same name.
    """

    package: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open the tracker's folder and replace earlier contents.

        After an interruption the tracker receives all rounds again from round 1, so no
        round is missing or repeated after a kill.

        Args:
            folder: folder of the tracker.
            config: resolved configuration.
        """

    @abstractmethod
    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write a round's metrics by name, such as ``pre/weighted``; rounds ascend."""

    @abstractmethod
    def close(self) -> None:
        """Write the remaining metrics."""


def find_id(folder: Path) -> str:
    """Return the random id of the run in a tracker's folder, also after an interruption.

    A new run in the same place has another id.
    """
    file = folder / ID
    if not file.exists() or not file.read_text():
        folder.mkdir(exist_ok=True)
        file.write_text(secrets.token_hex(8))
    return file.read_text()


def check(names: Iterable[str]) -> None:
    """Raise UserError for an unknown tracker, or one whose package is not installed."""
    for name in names:
        kind: type[Tracker] = plugins.find(PACKAGE, "runtime.track", name)
        # A search for PACKAGE.MODULE would import the package.
        package = kind.package.partition(".")[0]
        if package and find_spec(package) is None:
            advice = f'pip install ".[{package}]" in the folder of hpcfl'
            if ":" in name:
                advice = "install it"
            raise UserError(
                f"runtime.track = '{name}': {package} is not installed; {advice}, or "
                "remove it from the key"
            )


class Tracking:
    """Context manager that forwards each round's metrics to all trackers.

    Attributes:
        notes: one line for each failed tracker, until the caller removes them.
    """

    def __init__(
        self,
        names: Iterable[str],
        folder: Path,
        config: Mapping[str, Any],
        history: Iterable[tuple[int, Mapping[str, Any]]] = (),
    ) -> None:
        """Queue the history; the threads start when the block begins.

        Args:
            names: names of the trackers; each uses a folder of its name in ``folder``.
            folder: folder of the run.
            config: resolved configuration.
            history: rounds of earlier attempts, ascending, with their values.
        """
        self.notes: list[str] = []
        self._folder, self._config = folder, config
        self._queues: dict[str, Queue] = {name: SimpleQueue() for name in names}
        self._threads = [
            threading.Thread(
                target=self._follow, args=(name, queue), name=name, daemon=True
            )
            for name, queue in self._queues.items()
        ]
        for round, values in history if self._queues else ():
            self.round(round, values)

    def __enter__(self) -> "Tracking":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for queue in list(self._queues.values()):
            queue.put(None)
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.notes.append(
                    f"runtime.track: {thread.name} was still writing after {PATIENCE:g} s; "
                    "its last rounds may be missing"
                )

    def round(self, round: int, values: Mapping[str, Any]) -> None:
        """Queue the values that were recorded for a round."""
        for queue in list(self._queues.values()):
            queue.put((round, values))

    def _follow(self, name: str, queue: Queue) -> None:
        """Write queued rounds until the queue ends or the tracker fails."""
        try:
            kind: type[Tracker] = plugins.find(PACKAGE, "runtime.track", name)
            folder = self._folder / name
            if folder.is_symlink():
                raise OSError(
                    f"{folder} is a link, and files at its target would change"
                )
            tracker = kind(folder, self._config)
            while (item := queue.get()) is not None:
                round, values = item
                tracker.write(
                    round,
                    {
                        name: float(value)
                        for name, value in values.items()
                        if np.ndim(value) == 0 and np.isfinite(value)
                    },
                )
            tracker.close()
        except Exception as error:
            del self._queues[name]
            self.notes.append(
                f"runtime.track: {name} failed, the run continues without it "
                f"({user_code.describe_error(error)})"
            )
