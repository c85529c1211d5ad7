"""Standard output and error that never fail: on a full disk or a closed pipe, lines are
lost and results are not.
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

NOTE = "output.txt"  # in a run's folder: a note that its output could not be written
# The variable with the path of the file for the failure reason of a supervised job.
REASON = "HPCFL_REASON"
# The variable with the path of the file for the pace of a supervised job.
PACE = "HPCFL_PACE"
# The variable with the time at which a supervised job started its ranks, in seconds.
STARTED = "HPCFL_STARTED"


class Unfailing(io.FileIO):
    """An output descriptor that drops data instead of raising.

    failure: the first error; None without errors.
    """

    failure: OSError | None = None

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            self.failure = self.failure or error
            return memoryview(data).nbytes  # type: ignore[arg-type]


# whether ``say`` is suppressed; each thread has its own value
_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def guard() -> None:
    """Replace standard output and error by streams that never raise.

    Call it before opening any file: a file could take the number of a closed stream and
    receive all printed text.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        # takes the lowest free number
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    out, err = (Unfailing(number, "w", closefd=False) for number in (1, 2))
    if out.fileno() in closed:
        out.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout, sys.stderr = _make_text(out, sys.stdout), _make_text(err, sys.stderr)


def find_failure() -> OSError | None:
    """Return the first error of writing standard output; None without errors, and for
    a stream that ``guard`` did not make.
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, Unfailing):
        return None
    sys.stdout.flush()
    return raw.failure


@contextmanager
def suppress_lines() -> Iterator[None]:
    """Suppress hpcfl's own lines in the block.

    Prints of user code and of other threads stay.
    """
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


def is_quiet() -> bool:
    """Return whether a block of ``suppress_lines`` is open."""
    return _is_quiet.get()


def say(text: str) -> None:
    """Print a line unless a block of ``suppress_lines`` is open."""
    if not is_quiet():
        print(text, flush=True)


def complain(text: str) -> None:
    """Print the reason why this rank ends and pass it to the job's supervisor, if any.

    The supervisor receives the first line of the first failing rank only: later
    failures are its consequences.
    """
    print(f"hpcfl: {text}", file=sys.stderr)
    path = os.environ.get(REASON)
    if path:
        # another rank was faster, or the disk is full
        with suppress(OSError), open(path, "x") as file:
            file.write(text.partition("\n")[0])


def keep_note(folder: Path) -> None:
    """Write a note into a folder if standard output could not be written."""
    if error := find_failure():
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        line = f"{now}: standard output could not be written: {atomic.describe_reason(error)}\n"
        with suppress(RunFailure):  # the disk may be the one that is full
            atomic.write(folder / NOTE, line.encode())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _make_text(raw: Unfailing, like: TextIO | None) -> TextIO:
    """Return a text stream above ``raw`` with the settings of Python's original stream.

    The stream escapes letters that it cannot encode, such as those of an undecodable
    path. ``like`` is None if the original stream was closed.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding if like else None,
        errors="backslashreplace",
        line_buffering=getattr(like, "line_buffering", False)
        or getattr(like, "write_through", False),
    )


def count_seconds_since_start() -> float:
    """Return the seconds since the job's supervisor started the ranks; 0 without one."""
    started = os.environ.get(STARTED)
    return max(0.0, time.time() - float(started)) if started else 0.0


def keep_pace(round: float, checkpoint: float, start: float) -> None:
    """Write a job's seconds for its supervisor, if it has one. A full disk is ignored.

    round: those of the longest round. checkpoint: those that the checkpoint of a stop
    takes after it. start: those before the first round.
    """
    if path := os.environ.get(PACE):
        with suppress(RunFailure):
            pace = {"round": round, "checkpoint": checkpoint, "start": start}
            atomic.write(Path(path), json.dumps(pace).encode(), durable=False)
