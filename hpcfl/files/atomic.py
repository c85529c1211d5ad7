"""Atomic writing: a reader never sees a partial file, however the writer ends."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

import filelock

from hpcfl.errors import RunFailure

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = ".*.tmp"  # the pattern of names that a file has while it is written


class Damaged(Exception):
    """An existing file that is not as it was written, with the reason in one line."""


def reason(error: Exception) -> str:
    """Return an exception as a short line, such as 'No space left on device'."""
    number = getattr(error, "errno", None)
    return (
        os.strerror(number)
        if number
        else " ".join(str(error).split()) or type(error).__name__
    )


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Convert an OSError of the block to a RunFailure with ``path`` and the reason."""
    try:
        yield
    except OSError as error:
        advice = (
            "; make room and give the same command again" if error.errno in FULL else ""
        )
        raise RunFailure(f"{path}: {reason(error)}{advice}") from error


def write(path: Path, data: bytes | memoryview, durable: bool = True) -> None:
    """Write ``data`` to the file ``path`` by renaming a temporary file.

    durable: wait for the disk, so that the file survives a crash of the node and not
    only of the process. Raises RunFailure; an earlier file at ``path`` stays then, and
    the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explained(path):
        try:
            _fill(temporary, data, durable)
            os.replace(temporary, path)
            if durable:
                _sync_folder(path.parent)
        except BaseException:
            _discard(temporary)
            raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` at the end of the block.

    ``folder`` may exist if it is empty. An exception in the block leaves neither
    folder. After a kill, the next call for the same folder removes the remains. Raises
    RunFailure for a failed write.
    """
    folder = folder.resolve()
    there = next(above for above in folder.parents if above.exists())
    with ExitStack() as stack:
        with explained(folder):
            opened = temporary_folder(there, folder.name)
            temporary = stack.enter_context(opened)
        yield temporary
        with explained(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(folder)
            _sync_folder(folder.parent)


@contextmanager
def temporary_folder(above: Path, name: str) -> Iterator[Path]:
    """Make a folder in ``above`` and remove it at the end of the block.

    A kill leaves the folder; the next call with the same ``name`` removes it. Raises
    OSError where it cannot be made.
    """
    _remove_abandoned(above, f".{name}.")
    temporary = above / f".{name}.{uuid.uuid4().hex}.tmp"
    temporary.mkdir()
    lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _try_lock(lock)
        yield temporary
    finally:
        os.close(lock)
        shutil.rmtree(temporary, ignore_errors=True)


def is_temporary(name: str) -> bool:
    """Return whether a name is that of a file that ``write`` has not finished."""
    return fnmatch(name, TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files and folders of killed writers from ``folder``.

    No process may be writing a file in ``folder``; folders in use stay. Raises
    RunFailure.
    """
    with explained(folder):
        for path in folder.glob(TEMPORARY):
            if not _is_folder(path):
                path.unlink(missing_ok=True)
        _remove_abandoned(folder, ".")


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove the unlocked temporary folders in ``folder`` whose names begin with
    ``prefix``.
    """
    for path in folder.glob(TEMPORARY):
        if path.name.startswith(prefix) and _is_folder(path):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _try_lock(lock):
                    shutil.rmtree(path)
            finally:
                os.close(lock)


def _try_lock(folder: int) -> bool:
    """Lock an open folder; return False if another process has it or locks are missing."""
    try:
        return filelock.lock_descriptor(folder, blocking=False)
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _fill(path: Path, data: bytes | memoryview, durable: bool) -> None:
    with open(path, "xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable.

    Some network file systems cannot sync a folder and need not.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    with suppress(OSError):  # the failure that led here is the one to report
        path.unlink(missing_ok=True)
