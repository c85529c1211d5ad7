"""Whole files or none: a reader, a kill or a full disk never meets half a file."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from hpcfl.errors import RunFailure

TEMPORARY = ".*.tmp"  # pattern of what a killed writer leaves behind


class Damaged(Exception):
    """A file that exists but is not what was written: truncated, flipped bits, unreadable.
    One line of reason."""


def reason(error: Exception) -> str:
    """An exception in a few words on one line, e.g. 'No space left on device'."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else " ".join(str(error).split()) or type(error).__name__


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Inside the block an OSError becomes a RunFailure with one line: the file and the reason."""
    try:
        yield
    except OSError as error:
        raise RunFailure(f"{path}: {reason(error)}") from error


def write(path: Path, data: bytes | memoryview, durable: bool = True) -> None:
    """Publish ``data`` as ``path`` by rename. Raises RunFailure; the temporary is gone then and ``path``
    is untouched.

    With ``durable`` the file survives a crash of the node, not only of the process; without, no time is lost
    waiting for the disk.
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


def is_temporary(name: str) -> bool:
    """Whether a file's name is one that ``write`` gives until a file is whole."""
    return fnmatch(name, TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed writers left in ``folder``; nobody may be writing there."""
    with explained(folder):
        for path in folder.glob(TEMPORARY):
            path.unlink(missing_ok=True)


def _fill(path: Path, data: bytes | memoryview, durable: bool) -> None:
    with open(path, "xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some network file systems cannot sync a folder and need not."""
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
