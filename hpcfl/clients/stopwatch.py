"""Seconds by phase: one phase runs at a time, and an inner phase pauses the outer."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds in ``seconds``, by the name of the phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = self._last_lap = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call, whatever phases ran."""
        before, self._last_lap = self._last_lap, time.perf_counter()
        return self._last_lap - before

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A block whose time, without that of phases inside it, is added to
        ``seconds[name]``.
        """
        self._settle()
        self._running.append(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()

    def _settle(self) -> None:
        """Give the time since the last change of phase to the phase that is running."""
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
