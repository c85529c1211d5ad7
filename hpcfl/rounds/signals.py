"""Signals that ask a run to stop: the first sets a flag that all ranks look at after the round, the
second ends at once."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# of batch systems, which repeat them; they never end a run at once
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, *WARNINGS)
ECHO = 1.0  # seconds in which a repeated signal is the same: launchers pass on what the ranks got already

_early: list[str] = []  # what arrived before a run could act on it


def remember() -> None:
    """Keep stop signals for the next StopRequest instead of dying of them while a run is prepared;
    Ctrl-C still works."""
    for number in STOP:
        if number != signal.SIGINT:
            signal.signal(number, lambda number, frame: _early.append(signal.Signals(number).name))


def ignore() -> None:
    """For a process that is leaving: Python gives its handlers up long before the end, and a repeated
    warning would kill it."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Context manager: while it is open, ``received`` holds the name of the first stop signal, or None."""

    def __init__(self, at_once: Callable[[], None]):
        self.received: str | None = None
        self._received_at = 0.0
        self._at_once = at_once
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._handle) for number in STOP}
        self.received = next(iter(_early), None)
        _early.clear()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number).name, time.monotonic()
        elif number not in WARNINGS and time.monotonic() - self._received_at > ECHO:
            self._at_once()
