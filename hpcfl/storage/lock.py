"""The lock of a run's folder, which allows one run at a time."""

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from hpcfl.errors import RunFailure, UserError
from hpcfl.files import atomic, heartbeat, untrusted_files
from hpcfl.files.atomic import Damaged

NAME = ".lock"
# seconds of attempts: ranks of a killed job need a moment to end
PATIENCE = 5.0
PAUSE = 0.1  # seconds between two attempts
OWNER_BYTES = 1 << 10  # limit for the owner's note in the file


class FolderLock:
    """Context manager that locks a folder for this process; a missing folder is
    created.

    The kernel releases the lock when the process ends for any reason. Before ``sign``,
    the lock adds only ``.lock`` to the folder. Without ``sign``, the new folders and
    the file are removed at the end, unless they have other contents by then.

    Raises UserError if another process has locked the folder or the file system offers
    no locks, RunFailure for a failing disk.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / NAME
        self._descriptor = -1  # descriptor of the file, open while it is locked
        # the paths that ``__exit__`` removes unless signed, innermost first
        self._made: list[Path] = []
        self._signed = False

    def __enter__(self) -> "FolderLock":
        for path in (self._path, *self._path.parents):
            if os.path.lexists(path):
                break
            self._made.append(path)
        try:
            with atomic.explain_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock()
        except BaseException:
            self._remove_made()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._signed:
            self._remove_made()
        os.close(self._descriptor)

    def relock(self) -> None:
        """Lock the new folder at the path of the locked one, which was renamed.

        Raises RunFailure.
        """
        moved = self._descriptor
        try:
            self._lock()
        except UserError as error:
            raise RunFailure(str(error)) from None
        os.close(moved)

    def sign(self) -> None:
        """Write the owner of the folder into the lock's file. Raises RunFailure.

        A file with a second name elsewhere (a hard link) is not changed.
        """
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        owner = f"host {socket.gethostname()}, pid {os.getpid()}, since {started}"
        with atomic.explain_errors(self._path):
            if os.fstat(self._descriptor).st_nlink == 1:
                os.truncate(self._descriptor, 0)
                os.pwrite(self._descriptor, owner.encode(), 0)
        self._signed = True

    def is_in_place(self) -> bool:
        """Return whether the locked folder was neither moved nor removed."""
        with suppress(OSError):  # the file system may have failed
            return self._is_at(self._descriptor)
        return False

    def _lock(self) -> None:
        """Lock the file, creating it if missing; retry while another process has locked
        it.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._try_lock():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self._path.parent}: another run is using this folder "
                    f"({self._read_owner()})"
                )
            heartbeat.beat()
            time.sleep(PAUSE)

    def _try_lock(self) -> bool:
        """Attempt once to lock the file; return whether it succeeded."""
        from filelock import lock_descriptor  # not needed by commands that only read

        try:
            with atomic.explain_errors(self._path):
                flags = os.O_RDWR | os.O_CREAT
                descriptor = untrusted_files.open_descriptor(self._path, flags)
        except Damaged as error:
            raise UserError(f"{self._path}: {error}; choose another --out") from None
        try:
            # After a folder was renamed, its former owner has locked another file.
            if lock_descriptor(descriptor, blocking=False) and self._is_at(descriptor):
                self._descriptor = descriptor
                return True
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"{self._path.parent}: this file system does not support locks "
                f"(flock: {atomic.describe_reason(error)}); choose another folder with --out"
            ) from error
        os.close(descriptor)
        return False

    def _is_at(self, descriptor: int) -> bool:
        """Return whether an open file is still the one at the path."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _remove_made(self) -> None:
        """Remove the created folders and files, unless other processes have written to
        them.
        """
        for path in self._made:
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def _read_owner(self) -> str:
        try:
            owner = untrusted_files.read_bytes(self._path, OWNER_BYTES)
        except (FileNotFoundError, Damaged):
            owner = b""
        return owner.decode(errors="replace") or "owner unknown"


def is_held(folder: Path) -> bool:
    """Return whether a run has locked the folder, as far as this host can see.

    Nothing is changed. The result is also False if the file system does not show the
    locks of other hosts.
    """
    try:
        with untrusted_files.opened(folder / NAME) as file:
            # a shared lock, so that concurrent checks are not mistaken for a run
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, Damaged):
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False
