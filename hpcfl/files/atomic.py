"""Writing files whole or not at all: no reader meets half a file, whatever stops the writer."""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from hpcfl.errors import RunFailure

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = ".*.tmp"  # the pattern of names that a file has while it is written


class Damaged(Exception):
    """A file exists but is not what was written, such as cut off or unreadable. One line says why."""


def reason(error: Exception) -> str:
    """An exception in a few words on one line, e.g. 'No space left on device'."""
    number = getattr(error, "errno", None)
    return (
        os.strerror(number)
        if number
        else " ".join(str(error).split()) or type(error).__name__
    )


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Inside the block an OSError becomes a RunFailure with one line: ``path`` and the reason."""
    try:
        yield
    except OSError as error:
        advice = (
            "; make room and give the same command again" if error.errno in FULL else ""
        )
        raise RunFailure(f"{path}: {reason(error)}{advice}") from error


def write(path: Path, data: bytes | memoryview, durable: bool = True) -> None:
    """Publish ``data`` as the file ``path``, by rename.

    durable: whether to wait for the disk, so that the file survives a crash of the node, not only of the
    process. Raises RunFailure; what was at ``path`` is still there then, and no temporary file is left.
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
def together(folder: Path) -> Iterator[Path]:
    """A temporary folder inside the block; at its end all files in it move to ``folder``, which is made.

    What is raised in the block leaves neither. Raises RunFailure where something cannot be written.
    """
    there = next(
        above for above in (folder, *folder.absolute().parents) if above.exists()
    )
    temporary = there / f".{folder.name}.{uuid.uuid4().hex}.tmp"
    with explained(folder):
        temporary.mkdir()
    try:
        yield temporary
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(temporary.iterdir()):
                path.rename(folder / path.name)
            _sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_temporary(name: str) -> bool:
    """Whether ``write`` gives such names to files that are not whole yet."""
    return fnmatch(name, TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed writers left in ``folder``, in which nobody may be writing. Raises RunFailure."""
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
    """Make a rename in ``folder`` durable; some network file systems cannot sync a folder and need not."""
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
