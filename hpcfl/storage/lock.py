"""One run at a time in a folder."""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from hpcfl.errors import UserError
from hpcfl.storage import atomic

NAME = ".lock"
PATIENCE = 5.0  # seconds; the ranks of a job that was just killed need a moment to die
PAUSE = 0.1  # seconds between two attempts


class FolderLock:
    """Context manager: the folder is this process's own. The kernel frees it however the process ends.

    Raises UserError when another process has it or the file system offers no locks, RunFailure for a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        self._descriptor = -1

    def __enter__(self) -> "FolderLock":
        deadline = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > deadline:
                raise UserError(f"{self._path.parent}: another run is using this folder ({self._owner()})")
            time.sleep(PAUSE)
        with atomic.explained(self._path):
            os.ftruncate(self._descriptor, 0)
            started = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"host {socket.gethostname()}, pid {os.getpid()}, since {started}".encode(), 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        os.close(self._descriptor)

    def _take(self) -> bool:
        """One attempt; whether the lock is ours."""
        with atomic.explained(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        if _flock(descriptor, self._path) and _same_file(descriptor, self._path):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False

    def _owner(self) -> str:
        try:
            return self._path.read_text() or "owner unknown"
        except OSError:
            return "owner unknown"


def held(folder: Path) -> bool:
    """Whether a run has the folder now; for looking only. False too where the file system hides locks of other hosts."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _flock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        os.close(descriptor)
        raise UserError(f"{path.parent}: this file system offers no locks (flock: {atomic.reason(error)}), "
                        "choose another folder with --out") from error
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder, which its former owner may have moved aside."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
