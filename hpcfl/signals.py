"""Signals that ask a run to stop: the first sets a flag that all ranks look at after the round, the second ends at once."""

import signal
from collections.abc import Callable
from types import FrameType

STOP = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGXCPU"))


class StopRequest:
    """Context manager: while it is open, ``received`` holds the name of the first stop signal, or None."""

    def __init__(self, at_once: Callable[[], None]):
        self.received: str | None = None
        self._at_once = at_once
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._handle) for number in STOP}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._at_once()
        self.received = signal.Signals(number).name
