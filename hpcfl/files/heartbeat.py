"""The heartbeat of this rank; long operations must call ``beat`` regularly.

``communication/watchdog.py`` sends heartbeats to other ranks, and ends the job if a
rank sends none. The module has one global listener, because a process belongs to one
set of MPI ranks, and readers of files, products and users' hooks receive no
communicator.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _do_nothing() -> None:
    """Do nothing: a single process has no other ranks."""


_listener: Callable[[], None] = _do_nothing


def set_listener(listener: Callable[[], None]) -> None:
    """Set the function that ``beat`` calls.

    It must be cheap enough for every mini-batch.
    """
    global _listener
    _listener = listener


@contextmanager
def use_listener(listener: Callable[[], None]) -> Iterator[None]:
    """Set the function that ``beat`` calls, inside the block."""
    before = _listener
    set_listener(listener)
    try:
        yield
    finally:
        set_listener(before)


def beat() -> None:
    """Report that this rank is alive."""
    _listener()
