"""The heartbeat for long work that knows nothing of ranks, such as decoding a data set.

It calls ``beat`` now and then, so that the other ranks do not take this one for lost.
"""

from collections.abc import Callable


def _nobody() -> None:
    """In a process on its own no other rank waits."""


_tell: Callable[[], None] = _nobody


def to(tell: Callable[[], None]) -> None:
    """From now on ``beat`` calls ``tell``, which must be cheap enough for every entry
    of a data set.
    """
    global _tell
    _tell = tell


def beat() -> None:
    """Show that this rank is alive."""
    _tell()
