"""Standard output and error that never raise.

On a full disk or a closed pipe, printed lines are lost but results are not. The module
also passes the reason of a failure and the pace of a run to the job's supervisor.
"""

import errno
import io
import json
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

NOTE = "output.txt"  # file in a run's folder that reports lost output
# Environment variable with the path of the file for a supervised job's failure reason.
REASON = "HPCFL_REASON"
# Environment variable with the path of the file for a supervised job's pace.
PACE = "HPCFL_PACE"


class Unfailing(io.FileIO):
    """An output descriptor that discards data instead of raising.

    Attributes:
        failure: first error, or None.
    """

    failure: OSError | None = None

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            self.failure = self.failure or error
            return memoryview(data).nbytes  # type: ignore[arg-type]


# whether ``say`` is suppressed, by thread
_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def guard() -> None:
    """Replace standard output and error by streams that never raise.

    Call it before any file is opened: a file could receive the number of a closed
    stream, and then all printed text.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        # the new descriptor gets the lowest free number
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    out, err = (Unfailing(number, "w", closefd=False) for number in (1, 2))
    if out.fileno() in closed:
        out.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout, sys.stderr = _make_text(out, sys.stdout), _make_text(err, sys.stderr)


def find_failure() -> OSError | None:
    """Return the first error of writing standard output.

    The result is None without errors, and for a stream that ``guard`` did not create.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, Unfailing):
        return None
    sys.stdout.flush()
    return raw.failure


@contextmanager
def suppress_lines() -> Iterator[None]:
    """Suppress hpcfl's lines in the block.

    Output of users' code and of other threads is not suppressed.
    """
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


def is_quiet() -> bool:
    """Return whether a block of ``suppress_lines`` is active."""
    return _is_quiet.get()


def say(text: str) -> None:
    """Print a line, except in a block of ``suppress_lines``."""
    if not is_quiet():
        print(text, flush=True)


def complain(text: str) -> None:
    """Print the reason why this rank ends, and pass it to the job's supervisor, if any.

    The supervisor receives only the first line from the first failing rank, because
    later failures are consequences.
    """
    print(f"hpcfl: {text}", file=sys.stderr)
    path = os.environ.get(REASON)
    if path:
        line = text.partition("\n")[0]
        # errors: another rank has written the file, or the disk is full
        with suppress(OSError), open(path, "xb") as file:
            file.write(line.encode(errors="backslashreplace"))


def keep_note(folder: Path) -> None:
    """Write a note into a folder if standard output could not be written."""
    if error := find_failure():
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        line = f"{now}: standard output could not be written: {atomic.describe_reason(error)}\n"
        with suppress(RunFailure):  # the folder's disk may be full too
            atomic.write(folder / NOTE, line.encode())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _make_text(raw: Unfailing, like: TextIO | None) -> TextIO:
    """Return a text stream above ``raw`` with the settings of Python's original stream.

    The stream escapes characters that it cannot encode, such as those of an undecodable
    path. ``like`` is None if the original stream was closed.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like else None,
        errors="backslashreplace",
        line_buffering=getattr(like, "line_buffering", False)
        or getattr(like, "write_through", False),
    )


def keep_pace(round: float, checkpoint: float) -> None:
    """Write a job's durations for its supervisor, if any. A full disk is ignored.

    Args:
        round: seconds of the longest round.
        checkpoint: seconds of the checkpoint that follows when the job is stopped.
    """
    if path := os.environ.get(PACE):
        with suppress(RunFailure):
            pace = {"round": round, "checkpoint": checkpoint}
            atomic.write(Path(path), json.dumps(pace).encode(), durable=False)
