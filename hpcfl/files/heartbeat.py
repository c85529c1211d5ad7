"""The heartbeat of this rank, to be called regularly by everything that takes long.

``communication/watchdog.py`` sends the heartbeats to other ranks. The watchdog ends the
job if a rank sends none. The module keeps one listener, because MPI gives a process one
set of ranks, and readers of files, products and users' hooks receive no communicator.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _do_nothing() -> None:
    """Do nothing: a single process has no other ranks."""


_listener: Callable[[], None] = _do_nothing


def set_listener(listener: Callable[[], None]) -> None:
    """Set the function that ``beat`` calls; it must be cheap enough for every
    mini-batch.
    """
    global _listener
    _listener = listener


@contextmanager
def use_listener(listener: Callable[[], None]) -> Iterator[None]:
    """Set the function that ``beat`` calls inside the block."""
    before = _listener
    set_listener(listener)
    try:
        yield
    finally:
        set_listener(before)


def beat() -> None:
    """Report that this rank is alive."""
    _listener()
