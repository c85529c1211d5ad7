"""The lock of a run's folder: one run at a time.

A run locks the file ``.lock``, which works on every file system with locks. It also
locks the folder itself where the file system allows this, because no other process can
delete that lock.
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
from hpcfl.files import atomic, heartbeat, untrusted_files
from hpcfl.files.atomic import Damaged

NAME = ".lock"
# seconds to keep trying: the ranks of a killed job need a moment to end
PATIENCE = 5.0
PAUSE = 0.1  # seconds between two attempts
OWNER_BYTES = 1 << 10  # most bytes that are read of the owner's note in the file


class FolderLock:
    """Context manager that locks a folder for this process and makes it if missing.

    The kernel frees the lock however the process ends. Before ``sign``, only ``.lock``
    is added to the folder. Without ``sign``, the new folders and the file are removed
    at the end unless they have other contents by then.

    Raises UserError if another process has the folder or the file system offers no
    locks,
    RunFailure for a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        # open while the lock is held: the folder and the file
        self._descriptors: list[int] = []
        # the paths that ``__exit__`` removes unless signed, innermost first
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
        """Lock the new folder at the path of the locked one, which was moved aside.

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
        """Write the owner of the folder into the lock's file. Raises RunFailure.

        A new, locked file replaces ``.lock``, which may be a hard link to another
        user's file.
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
        """Try once to lock; return whether it succeeded."""
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
        """Lock the folder, if the file system can, and the file in it."""
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
        """Make the folder and its parents; note the missing paths, including the lock's
        file.
        """
        for path in (self._path, *self._path.parents):
            if os.path.lexists(path):
                break
            if path not in self._made:
                self._made.append(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def _remove_made(self) -> None:
        """Remove the folders and files that were made, unless others wrote into them
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
            owner = untrusted_files.read_bytes(self._path, OWNER_BYTES)
        except (FileNotFoundError, Damaged):
            owner = b""
        return owner.decode(errors="replace") or "owner unknown"


def held(folder: Path) -> bool:
    """Return whether a run has the folder now, as far as this host sees.

    Nothing is changed. The result is also False if the file system hides the locks of
    other hosts.
    """
    return _locked(folder, os.O_DIRECTORY) or _locked(
        folder / NAME, os.O_NOFOLLOW | os.O_NONBLOCK
    )


def _locked(path: Path, flags: int) -> bool:
    """Return whether another process has locked the file at ``path``.

    flags: further flags for opening it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError:
        return False
    try:  # a shared lock, so that concurrent checks do not look like a run
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _open(path: Path, flags: int = 0) -> int:
    """Open a lock's file, make it if missing, and return its descriptor.

    Raises OSError, UserError.
    """
    try:
        return untrusted_files.descriptor(path, os.O_RDWR | os.O_CREAT | flags)
    except Damaged as error:
        raise UserError(f"{path}: {error}; choose another --out") from None


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at ``path``.

    Its former owner may have replaced it.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
