"""Long work outside the training loop, such as decoding or checking files, says with ``beat`` that this rank is alive."""

from collections.abc import Callable


def _nobody() -> None:
    """Alone, nobody waits for a sign of life."""


_tell: Callable[[], None] = _nobody


def to(function: Callable[[], None]) -> None:
    """From now on ``beat`` calls ``function``, in the thread of its caller."""
    global _tell
    _tell = function


def beat() -> None:
    """This rank is alive; to be called in the main thread, about every tenth of a second or after every piece of work."""
    _tell()
