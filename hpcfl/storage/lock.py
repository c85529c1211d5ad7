"""One run at a time in a folder.

A run locks two things: the file ``.lock``, which works on every file system that has locks, and the folder
itself, where the file system can lock folders, because nobody can delete that lock from under the run.
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
PATIENCE = 5.0  # seconds to keep trying: the ranks of a job that was just killed need a moment to die
PAUSE = 0.1  # seconds between two attempts
OWNER_BYTES = 1 << 10  # most that is read of what an owner wrote into the file


class FolderLock:
    """Context manager: the folder, made where missing, is this process's own inside the block.

    The kernel frees it however the process ends. Nothing in the folder changes but that ``.lock`` is there,
    until ``sign`` writes down who has it. Without ``sign`` the folders and the file that were made for the
    lock are removed at the end, unless something else is in them by then.

    Raises UserError when another process has it or the file system offers no locks, RunFailure for
    a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        self._descriptors: list[
            int
        ] = []  # while the lock is held: of the folder, and of the file
        self._made: list[
            Path
        ] = []  # what ``__exit__`` removes unless signed, innermost first
        self._signed = False

    def __enter__(self) -> "FolderLock":
        deadline = time.monotonic() + PATIENCE
        while not self._take():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self._path.parent}: another run is using this folder ({self._owner()})"
                )
            heartbeat.beat()
            time.sleep(PAUSE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._signed:
            self._remove_made()
        self._release()

    def relock(self) -> None:
        """Lock the new folder in the place of the locked one, which was moved aside. Raises RunFailure."""
        moved, self._descriptors = self._descriptors, []
        if not self._take():
            raise RunFailure(
                f"{self._path.parent}: another run took this folder ({self._owner()})"
            )
        for descriptor in moved:
            os.close(descriptor)

    def sign(self) -> None:
        """Write down who has the folder, for those who are refused. Raises RunFailure."""
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        with atomic.explained(self._path):
            os.ftruncate(self._descriptors[-1], 0)
            os.pwrite(
                self._descriptors[-1],
                f"host {socket.gethostname()}, pid {os.getpid()}, since {started}".encode(),
                0,
            )
        self._signed = True

    def _take(self) -> bool:
        """Try once to lock; returns whether the lock is ours."""
        try:
            with atomic.explained(self._path.parent):
                self._make()
            with atomic.explained(self._path):
                self._descriptors.append(
                    os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
                )
                self._descriptors.append(_opened(self._path))
            folder, file = self._descriptors
            if (
                _flock_folder(folder)
                and _flock(file, self._path)
                and _same_file(file, self._path)
            ):
                return True
        except BaseException:
            self._release()
            self._remove_made()
            raise
        self._release()
        return False

    def _make(self) -> None:
        """Make the folder and its parents; note what was missing, the lock's file too."""
        missing = []
        for folder in (self._path, self._path.parent, *self._path.parent.parents):
            if os.path.lexists(folder):
                break
            missing.append(folder)
        self._made = [
            *self._made,
            *(folder for folder in missing if folder not in self._made),
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _remove_made(self) -> None:
        """Remove what was made, but no folder in which others wrote something meanwhile."""
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
            return (
                foreign.read_bytes(self._path, OWNER_BYTES).decode(errors="replace")
                or "owner unknown"
            )
        except (FileNotFoundError, Damaged):
            return "owner unknown"


def held(folder: Path) -> bool:
    """Whether a run has the folder now, as far as this host sees; nothing is changed.

    False too where the file system hides the locks of other hosts.
    """
    return _locked(folder, os.O_DIRECTORY) or _locked(
        folder / NAME, os.O_NOFOLLOW | os.O_NONBLOCK
    )


def _locked(path: Path, flags: int) -> bool:
    """Whether another process has locked what is at ``path``, opened with these further flags."""
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
    """A descriptor of the lock's file, made where it is missing. Raises OSError, UserError."""
    try:
        return foreign.descriptor(path, os.O_RDWR | os.O_CREAT)
    except Damaged as error:
        raise UserError(f"{path}: {error}; choose another --out") from None


def _flock_folder(descriptor: int) -> bool:
    """Lock the folder; False if another process has it, True where the file system cannot lock folders."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _flock(descriptor: int, path: Path) -> bool:
    """Lock the file; False if another process has it. Raises UserError where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise UserError(
            f"{path.parent}: this file system offers no locks (flock: {atomic.reason(error)}), "
            "choose another folder with --out"
        ) from error
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one in the folder, which its former owner may have moved aside."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
