"""Signals that ask a run to stop.

The first signal sets a flag that all ranks check after each round. A second one ends
the run at once.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from hpcfl.errors import RunFailure, UserError

# Batch systems announce the end of a job with these signals, and repeat them. They
# never end a run at once.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, *WARNINGS)
# Seconds within which a second signal is a copy of the first: launchers forward signals
# that the ranks have already received.
ECHO = 1.0


class Memory:
    """A handler that stores stop signals for the next StopRequest.

    Attributes:
        early: names of the signals, and the times of their arrival.
    """

    def __init__(self) -> None:
        self.early: list[tuple[str, float]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.early.append((signal.Signals(number).name, time.monotonic()))


def remember() -> None:
    """Store stop signals for the next StopRequest instead of ending the process.

    Ctrl-C still ends the process.
    """
    memory = Memory()
    for number in STOP_SIGNALS:
        if number != signal.SIGINT:
            signal.signal(number, memory)


def ignore() -> None:
    """Ignore stop signals from now on, in a process that is about to exit.

    Python removes its handlers long before the process ends, and a repeated warning
    would kill it.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def pass_over_interrupts(unraisable: "sys.UnraisableHookArgs") -> None:
    """Handle exceptions that Python cannot raise, and ignore a Ctrl-C among them.

    A Ctrl-C that arrives while Python finalises an object cannot end the process there.
    Python would print a traceback of its own code and continue.
    """
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


class StopRequest:
    """Context manager that records the name of the first stop signal as ``received``.

    ``received`` is None without a signal.

    A signal that arrived too late for a run stops the next run of a process that stores
    signals (``remember``), such as a sweep. Python accepts handlers only in the main
    thread; in other threads no signal is received.
    """

    def __init__(self, end_now: Callable[[], None]):
        """Begin without a signal.

        Args:
            end_now: function called when another signal arrives later, except for
                WARNINGS.
        """
        self.received: str | None = None
        self._received_at = 0.0
        self._end_now = end_now
        self._before: dict[
            int, Callable[[int, FrameType | None], Any] | int | None
        ] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._before = {
            number: signal.signal(number, self._handle) for number in STOP_SIGNALS
        }
        memory = self._before[signal.SIGTERM]
        if isinstance(memory, Memory):
            if memory.early and self.received is None:
                self.received, self._received_at = memory.early[0]
            memory.early.clear()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        ended_by_itself = error is None or issubclass(error, (RunFailure, UserError))
        memory = self._before.get(signal.SIGTERM)
        if self.received and ended_by_itself and isinstance(memory, Memory):
            memory.early.append((self.received, self._received_at))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = (
                signal.Signals(number).name,
                time.monotonic(),
            )
        elif number not in WARNINGS and time.monotonic() - self._received_at > ECHO:
            self._end_now()
