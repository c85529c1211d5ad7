"""One run at a time in a folder.

A run locks the file ``.lock``, which every file system with locks can do, and the folder itself, which no one
can delete from under it, where the file system can lock folders.
"""

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from hpcfl.errors import RunFailure, UserError
from hpcfl.files import atomic, foreign, heartbeat
from hpcfl.files.atomic import Damaged

NAME = ".lock"
PATIENCE = 5.0  # seconds; the ranks of a job that was just killed need a moment to die
PAUSE = 0.1  # seconds between two attempts
OWNER_BYTES = 1 << 10  # of what an owner says of itself, at most


class FolderLock:
    """Context manager: the folder, made where missing, is this process's own. The kernel frees it however
    the process ends.

    Nothing in the folder changes but that ``.lock`` is there, until ``sign`` writes down who has it;
    a folder that was made for the lock and is still empty at the end is removed again.

    Raises UserError when another process has it or the file system offers no locks, RunFailure for
    a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        self._descriptors: list[int] = []
        self._made: list[Path] = []  # what is removed again when nothing was written: innermost first
        self._signed = False

    def __enter__(self) -> "FolderLock":
        deadline = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > deadline:
                raise UserError(f"{self._path.parent}: another run is using this folder ({self._owner()})")
            heartbeat.beat()
            time.sleep(PAUSE)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if not self._signed:
            self._remove_made()
        self._release()

    def again(self) -> None:
        """Lock the folder that was made in the place of the locked one, which was moved aside.
        Raises RunFailure."""
        moved, self._descriptors = self._descriptors, []
        if not self._take():
            raise RunFailure(f"{self._path.parent}: another run took this folder ({self._owner()})")
        for descriptor in moved:
            os.close(descriptor)

    def sign(self) -> None:
        """Write down who has the folder, for those who are refused. Raises RunFailure."""
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        with atomic.explained(self._path):
            os.ftruncate(self._descriptors[-1], 0)
            os.pwrite(self._descriptors[-1],
                      f"host {socket.gethostname()}, pid {os.getpid()}, since {started}".encode(), 0)
        self._signed = True

    def _take(self) -> bool:
        """One attempt; whether the lock is ours."""
        try:
            with atomic.explained(self._path.parent):
                self._make()
            with atomic.explained(self._path):
                self._descriptors.append(os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY))
                self._descriptors.append(_opened(self._path))
            folder, file = self._descriptors
            if _flock_folder(folder) and _flock(file, self._path) and _same_file(file, self._path):
                return True
        except BaseException:
            self._release()
            self._remove_made()
            raise
        self._release()
        return False

    def _make(self) -> None:
        """The folder and its parents; noted are those that were missing, and the lock's file."""
        missing = []
        for folder in (self._path, self._path.parent, *self._path.parent.parents):
            if os.path.lexists(folder):
                break
            missing.append(folder)
        self._made = [*self._made, *(folder for folder in missing if folder not in self._made)]
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _remove_made(self) -> None:
        """As if nobody had been here; what others wrote meanwhile stays, and keeps its folders."""
        for path in self._made:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        self._made = []

    def _release(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _owner(self) -> str:
        try:
            return foreign.read_bytes(self._path, OWNER_BYTES).decode(errors="replace") or "owner unknown"
        except (FileNotFoundError, Damaged):
            return "owner unknown"


def held(folder: Path) -> bool:
    """Whether a run has the folder now; for looking only. False too where the file system hides locks
    of other hosts."""
    return _locked(folder, os.O_DIRECTORY) or _locked(folder / NAME, os.O_NOFOLLOW | os.O_NONBLOCK)


def _locked(path: Path, flags: int) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _opened(path: Path) -> int:
    """The lock's file, made where it is missing and left as it is where not. Raises OSError, UserError."""
    try:
        return foreign.descriptor(path, os.O_RDWR | os.O_CREAT)
    except Damaged as error:
        raise UserError(f"{path}: {error}; choose another --out") from None


def _flock_folder(descriptor: int) -> bool:
    """False if another process has locked the folder; True too where the file system cannot lock folders."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _flock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise UserError(f"{path.parent}: this file system offers no locks (flock: {atomic.reason(error)}), "
                        "choose another folder with --out") from error
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder, which its former owner may have moved aside."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
