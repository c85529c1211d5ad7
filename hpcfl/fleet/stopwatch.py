"""Seconds by phase: one phase runs at a time, an inner one pauses the outer."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """``with stopwatch.phase("train"): …`` adds to ``seconds["train"]`` what no inner phase claims."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = self._last_lap = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, whatever ran."""
        before, self._last_lap = self._last_lap, time.perf_counter()
        return self._last_lap - before

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._settle()
        self._running.append(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
