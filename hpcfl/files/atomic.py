"""Atomic writing of files and folders, and checks of output paths.

Readers never see a partial file, even if the writer is killed. Output paths are checked
before work begins, so an invalid path ends the command with one line and no changes.
"""

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from hpcfl.errors import RunFailure, UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
TEMPORARY = ".*.tmp"  # pattern of the names of temporary files
LONGEST_NAME = 255  # bytes; limit of most file systems
LONGEST_PATH = 4096 - 400  # bytes; limit of Linux minus the names of files inside
DEEPEST = 100  # largest number of parent folders


class Damaged(Exception):
    """Error for a file whose content is not valid, with the reason in one line."""


def describe_reason(error: Exception) -> str:
    """Return an exception as a short line, such as 'No space left on device'."""
    number = getattr(error, "errno", None)
    return (
        os.strerror(number)
        if number
        else " ".join(str(error).split()) or type(error).__name__
    )


@contextmanager
def explain_errors(path: str | Path) -> Iterator[None]:
    """Convert an OSError in the block to a RunFailure with ``path`` and the reason."""
    try:
        yield
    except OSError as error:
        advice = (
            "; free some space and repeat the command" if error.errno in FULL else ""
        )
        raise RunFailure(f"{path}: {describe_reason(error)}{advice}") from error


def write(path: Path, data: bytes | memoryview, durable: bool = True) -> None:
    """Write a file by renaming a temporary file.

    Args:
        path: the file.
        data: its content.
        durable: Whether to wait for the disk, so that the file also survives a crash of
            the node, not only of the process.

    Raises:
        RunFailure: The file cannot be written. An earlier file at ``path`` is kept, and
            the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explain_errors(path):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if durable:
                _sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to report
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` at the end of the block.

    ``folder`` may exist if it is empty. After an exception in the block neither folder
    remains. After a kill, the next call for the same folder removes the temporary one.
    Raises RunFailure if writing fails.
    """
    folder = folder.resolve()
    there = next(above for above in folder.parents if above.exists())
    with ExitStack() as stack:
        with explain_errors(folder):
            opened = make_temporary_folder(there, folder.name)
            temporary = stack.enter_context(opened)
        yield temporary
        with explain_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(folder)
            _sync_folder(folder.parent)


@contextmanager
def make_temporary_folder(above: Path, name: str) -> Iterator[Path]:
    """Create a folder, and remove it at the end of the block.

    After a kill the folder remains; the next call with the same ``name`` removes it.

    Args:
        above: parent folder.
        name: part of the folder's name.

    Raises:
        OSError: The folder cannot be created.
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


def list_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match a pattern, ascending; none if the
    folder is missing.

    ``Path.glob`` finds none in an unreadable folder either. Raises RunFailure.
    """
    paths: list[Path] = []
    with explain_errors(folder), suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(folder)):
            if fnmatch(name, pattern):
                paths.append(folder / name)
    return paths


def is_temporary(name: str) -> bool:
    """Return whether a name is that of a temporary file of ``write``."""
    return fnmatch(name, TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove temporary files and folders of killed processes from ``folder``.

    No process may be writing a file in ``folder``; folders in use are kept. Raises
    RunFailure.
    """
    with explain_errors(folder):
        for path in folder.glob(TEMPORARY):
            if not _is_folder(path):
                path.unlink(missing_ok=True)
        _remove_abandoned(folder, ".")


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove unlocked temporary folders whose names begin with ``prefix`` from
    ``folder``.
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
    """Lock an open folder; return False if another process has locked it or locks are
    unsupported.
    """
    from filelock import lock_descriptor  # not needed by commands that only read

    try:
        return lock_descriptor(folder, blocking=False)
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable.

    Some network file systems cannot sync folders and do not need it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def check_working_folder() -> None:
    """Raise UserError if the working folder was deleted."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working folder cannot be used: {describe_reason(error)}; change to another "
            "folder"
        ) from None


def check_folder(path: Path) -> None:
    """Raise UserError if ``path`` cannot become a folder.

    A link to a folder is accepted.
    """
    _check(path)
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(
            f"{path}: {_describe_kind(path)}, not a folder; choose another --out"
        )


def check_file(path: Path) -> None:
    """Raise UserError if no file can be written at ``path``.

    An existing regular file may be replaced; links and other kinds of files are
    refused.
    """
    _check(path)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise UserError(
            f"{path}: {_describe_kind(path)}, not a file; choose another --out"
        )


def _check(path: Path) -> None:
    """Check the name, length and parent folders of a path. Raises UserError."""
    written = os.fsencode(path)
    if b"\0" in written:
        raise UserError(f"{written!a}: contains a NUL character; choose another --out")
    try:
        written.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{written!a}: is not UTF-8, so it cannot be displayed; choose another --out"
        ) from None
    longest = max(len(os.fsencode(name)) for name in (path.name, *path.parts))
    if longest > LONGEST_NAME or len(written) > LONGEST_PATH:
        raise UserError(f"{path}: the path is too long; choose another --out")
    if len(path.parts) > DEEPEST:
        raise UserError(
            f"{path}: has more than {DEEPEST} parent folders; choose another --out"
        )
    try:
        if os.path.realpath(path) == os.path.sep:
            raise UserError(f"{path}: is the root folder; choose another --out")
        above = next(one for one in path.absolute().parents if os.path.lexists(one))
        if not stat.S_ISDIR(above.stat().st_mode):
            raise NotADirectoryError(
                f"{above} is {_describe_kind(above)}, not a folder"
            )
    except OSError as error:
        raise UserError(
            f"{path}: {describe_reason(error)}; choose another --out"
        ) from None


def _describe_kind(path: Path) -> str:
    """Return the kind of file at a path in words."""
    if path.is_symlink():
        return "a link" if path.exists() else "a link without a target"
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a device or pipe"
