"""Instrumentation inside a process of a job. It counts the process's input/output
operations below the results folder, and at one of them the process dies, fails, or
reports the moment to the campaign.

An operation is: opening for writing, writing, syncing, renaming, removing, making a
folder, truncating a file. ``HPCFL_JOB`` names a folder for the process's reports;
``HPCFL_STRIKE`` is a ``Strike`` in JSON.
"""

import atexit
import builtins
import io
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Python's audit events of changes to a folder or the length of a file.
CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass
class Strike:
    """Fault in the process of ``rank`` at its operation ``number`` below ``folder``,
    counted from the moment when a file whose name contains ``after`` is renamed into
    place.

    act: "kill", "fail" with ``errno``, or "report". limit: maximal bytes of a file. user:
    user whose rights to take. output: "full" or "closed", for standard output.
    """

    folder: str
    rank: int = 0
    number: int = 0
    after: str = ""
    act: str = ""
    errno: int = 0
    limit: int | None = None
    user: int | None = None
    output: str = ""


class Operations:
    """Counter of operations that causes the fault once."""

    def __init__(self, strike: Strike, place: Path):
        self._strike, self._place = strike, place
        self._counts, self._count = not strike.after, 0
        self._lock = threading.RLock()  # a checkpoint is written in a separate thread

    def happens(
        self, path, half: Callable[[], Any] = lambda: None, renames: bool = False
    ):
        """Handle an operation on ``path``; ``half`` executes the part that a kill or an
        error leaves.
        """
        path = os.fsdecode(path)
        if not path.startswith(self._strike.folder):
            return
        with self._lock:
            self._count += self._counts
            self._counts = self._counts or (renames and self._strike.after in path)
            if self._count != self._strike.number or not self._strike.act:
                return
            act, self._strike.act = self._strike.act, ""
        self._act(act, half)

    def _act(self, act: str, half: Callable[[], Any]):
        (self._place / "struck").touch()
        if act == "report":
            return
        half()
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self._strike.errno, os.strerror(self._strike.errno))

    def report(self):
        """Report the number of operations, for faults in other processes."""
        (self._place / "operations").write_text(str(self._count))


def prepare():
    """Prepare this process for the fault that the environment names."""
    place = Path(os.environ["HPCFL_JOB"])
    rank = int(os.environ.get("PMI_RANK", 0))
    strike = Strike(**json.loads(os.environ["HPCFL_STRIKE"]))
    if strike.limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (strike.limit, strike.limit))
    if strike.rank == rank:
        operations = Operations(strike, place)
        atexit.register(operations.report)
        watch(operations)
    if strike.user is not None:
        os.setgroups([])
        os.setresgid(strike.user, strike.user, strike.user)
        os.setresuid(strike.user, strike.user, strike.user)
    report_connected(place / f"connected-{rank}")
    if strike.output == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif strike.output == "closed":
        os.close(1)


def watch(operations: Operations):
    """Count every operation of this process from now on."""

    def count_operation(event: str, arguments: tuple[Any, ...]):
        if (
            event == "open"
            and (arguments[2] or 0) & WRITING
            and not isinstance(arguments[0], int)
        ):
            operations.happens(arguments[0])
        elif event in CHANGES:
            operations.happens(_find_path(arguments[0]), renames=event == "os.rename")

    def counted(function):
        def call(descriptor: int, *arguments):
            operations.happens(_find_path(descriptor))
            return function(descriptor, *arguments)

        return call

    class CountedFile(io.FileIO):
        def write(self, data) -> int:
            half = memoryview(data)[: len(data) // 2]
            operations.happens(
                _find_path(self.fileno()), lambda: io.FileIO.write(self, half)
            )
            return super().write(data)

    def opened(file, mode: str = "r", buffering: int = -1, *arguments, **keys):
        if "b" in mode and mode[0] in "wxa" and buffering != 0:
            return io.BufferedWriter(CountedFile(file, mode.replace("b", "")))
        return real(file, mode, buffering, *arguments, **keys)

    real = builtins.open
    builtins.open = io.open = opened
    os.fsync, os.write, os.pwrite = (
        counted(os.fsync),
        counted(os.write),
        counted(os.pwrite),
    )
    sys.addaudithook(count_operation)


def report_connected(path: Path):
    """Report to the campaign that MPI has started: from here on a silent rank must be
    detected.
    """
    from hpcfl.communication import connection

    connect = connection.connect

    def connected():
        found = connect()
        path.touch()
        return found

    connection.connect = connected


def _find_path(file):
    """Return the path of a file that may be given as a descriptor."""
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
