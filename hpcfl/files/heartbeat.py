"""The heartbeat of this rank, which everything that takes long gives now and then.

So that the other ranks do not take this one for dead. ``communication/watchdog.py``
sends it on and ends the job in which a rank gives none.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _nobody() -> None:
    """In a process on its own no other rank waits."""


_listener: Callable[[], None] = _nobody


def to(listener: Callable[[], None]) -> None:
    """From now on ``beat`` calls a listener, which must be cheap enough for every
    mini-batch.
    """
    global _listener
    _listener = listener


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """Inside the block ``beat`` calls another listener."""
    before = _listener
    to(listener)
    try:
        yield
    finally:
        to(before)


def beat() -> None:
    """Show that this rank is alive."""
    _listener()
