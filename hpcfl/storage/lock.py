"""One run at a time in a folder.

A run locks two things: the file ``.lock``, which works on every file system that has
locks, and the folder itself, where the file system can lock folders, because nobody can
delete that lock from under the run.
"""

import errno
import fcntl
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from filelock import lock_descriptor

from hpcfl.errors import RunFailure, UserError
from hpcfl.files import atomic, foreign, heartbeat
from hpcfl.files.atomic import Damaged

NAME = ".lock"
# seconds to keep trying: the ranks of a job that was just killed need a moment to die
PATIENCE = 5.0
PAUSE = 0.1  # seconds between two attempts
OWNER_BYTES = 1 << 10  # most that is read of what an owner wrote into the file


class FolderLock:
    """Context manager: the folder, made where missing, is this process's own inside the
    block.

    The kernel frees it however the process ends. Nothing in the folder changes but that
    ``.lock`` is there, until ``sign`` writes down who has it. Without ``sign`` the
    folders and the file that were made for the lock are removed at the end, unless
    something else is in them by then.

    Raises UserError when another process has it or the file system offers no locks,
    RunFailure for a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        # open while the lock is held: the folder and the file
        self._descriptors: list[int] = []
        # what ``__exit__`` removes unless signed, innermost first
        self._made: list[Path] = []
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
        """Lock the new folder in the place of the locked one, which was moved aside.
        Raises RunFailure.
        """
        moved, self._descriptors = self._descriptors, []
        if not self._take():
            raise RunFailure(
                f"{self._path.parent}: another run took this folder ({self._owner()})"
            )
        for descriptor in moved:
            os.close(descriptor)

    def sign(self) -> None:
        """Write down who has the folder, for those who are refused. Raises RunFailure.

        A new file, locked before it can be seen, takes the place of ``.lock``, which
        may be a second name of somebody else's file.
        """
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = f"host {socket.gethostname()}, pid {os.getpid()}, since {started}"
        new = self._path.with_name(f"{NAME}.{uuid.uuid4().hex}.tmp")
        with atomic.explained(self._path):
            try:
                self._descriptors.append(_open(new, os.O_EXCL))
                lock_descriptor(self._descriptors[-1], blocking=False)
                os.write(self._descriptors[-1], owner.encode())
                new.replace(self._path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
        self._signed = True

    def _take(self) -> bool:
        """Try once to lock; returns whether the lock is ours."""
        try:
            with atomic.explained(self._path):
                self._make()
                if self._lock_both():
                    return True
        except BaseException:
            self._release()
            self._remove_made()
            raise
        self._release()
        return False

    def _lock_both(self) -> bool:
        """Lock the folder, where the file system can, and the file in it."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self._descriptors.append(folder)
        file = _open(self._path)
        self._descriptors.append(file)
        try:
            folder_is_ours = lock_descriptor(folder, blocking=False)
            if not folder_is_ours:
                return False
        except OSError:
            folder_is_ours = False
        if folder_is_ours and os.fstat(file).st_nlink > 1:
            return True  # the file's other name may be another run's lock
        try:
            file_is_ours = lock_descriptor(file, blocking=False)
        except OSError as error:
            raise UserError(
                f"{self._path.parent}: this file system offers no locks (flock: "
                f"{atomic.reason(error)}), choose another folder with --out"
            ) from error
        return file_is_ours and _is_at(file, self._path)

    def _make(self) -> None:
        """Make the folder and its parents; note what was missing, the lock's file too."""
        for path in (self._path, *self._path.parents):
            if os.path.lexists(path):
                break
            if path not in self._made:
                self._made.append(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _remove_made(self) -> None:
        """Remove what was made, but no folder in which others wrote something
        meanwhile.
        """
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
            owner = foreign.read_bytes(self._path, OWNER_BYTES)
        except (FileNotFoundError, Damaged):
            owner = b""
        return owner.decode(errors="replace") or "owner unknown"


def held(folder: Path) -> bool:
    """Whether a run has the folder now, as far as this host sees; nothing is changed.

    False too where the file system hides the locks of other hosts.
    """
    return _locked(folder, os.O_DIRECTORY) or _locked(
        folder / NAME, os.O_NOFOLLOW | os.O_NONBLOCK
    )


def _locked(path: Path, flags: int) -> bool:
    """Whether another process has locked what is at ``path``, opened with these further
    flags.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError:
        return False
    try:  # a shared lock, so that several who look do not take each other for a run
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _open(path: Path, flags: int = 0) -> int:
    """A descriptor of a lock's file, made where it is missing. Raises OSError,
    UserError.
    """
    try:
        return foreign.descriptor(path, os.O_RDWR | os.O_CREAT | flags)
    except Damaged as error:
        raise UserError(f"{path}: {error}; choose another --out") from None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at ``path``, in whose place its former
    owner may have put another.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
