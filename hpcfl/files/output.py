"""Standard output and error that never end a command: a full disk or a reader that is
gone takes lines, and no result.
"""

import errno
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from hpcfl.errors import RunFailure
from hpcfl.files import atomic

NOTE = "output.txt"  # in a run's folder: that its output could not be written
# Names the file in which the ranks of a supervised job say why they failed.
REASON = "HPCFL_REASON"


class Unfailing(io.FileIO):
    """A descriptor that takes what is written to it, and drops what cannot be written.

    failure: why the first could not be, None as long as all could.
    """

    failure: OSError | None = None

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            self.failure = self.failure or error
            return memoryview(data).nbytes  # type: ignore[arg-type]


# whether ``say`` prints; a thread has its own
_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_below_stdout: list[Unfailing] = []  # the one, once ``guard`` was called


def guard() -> None:
    """From now on nothing that is printed raises an exception.

    To be called before a file is opened: one that took the number of a closed stream
    would get all that is printed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        # takes the lowest free number
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    out, err = (Unfailing(number, "w", closefd=False) for number in (1, 2))
    if out.fileno() in closed:
        out.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout, sys.stderr = _text(out, sys.stdout), _text(err, sys.stderr)
    _below_stdout[:] = [out]


def failure() -> OSError | None:
    """Why standard output could not be written so far; None if it could."""
    if not _below_stdout:
        return None
    sys.stdout.flush()
    return _below_stdout[0].failure


@contextmanager
def quiet() -> Iterator[None]:
    """Print nothing of hpcfl's own in a block. The prints of a user's code, and of other
    threads, stay.
    """
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


def is_quiet() -> bool:
    """Whether a block of ``quiet`` is open."""
    return _is_quiet.get()


def say(text: str) -> None:
    """Print a line, except in a block of ``quiet``."""
    if not is_quiet():
        print(text, flush=True)


def complain(text: str) -> None:
    """Print why this rank ends, and tell the job's supervisor, if it has one.

    The supervisor is told the first line of the first rank that complains: that is the
    cause, and others fail because of it.
    """
    print(f"hpcfl: {text}", file=sys.stderr)
    path = os.environ.get(REASON)
    if path:
        # another rank was faster, or the disk is full
        with suppress(OSError), open(path, "x") as file:
            file.write(text.partition("\n")[0])


def keep_note(folder: Path) -> None:
    """Say in a folder that standard output could not be written, if so."""
    if error := failure():
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        line = f"{now}: standard output could not be written: {atomic.reason(error)}\n"
        with suppress(RunFailure):  # the disk may be the one that is full
            atomic.write(folder / NOTE, line.encode())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _text(raw: Unfailing, like: TextIO | None) -> TextIO:
    """A stream of text above ``raw``, as the one that Python had made, None where that
    was closed.

    Letters that it cannot encode, such as those of a path that is no text, are escaped.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like else None,
        errors="backslashreplace",
        line_buffering=getattr(like, "line_buffering", False)
        or getattr(like, "write_through", False),
    )
