"""Checks of output paths before any work begins.

A wrong path ends the command with one line, and nothing has changed.
"""

import os
import stat
from pathlib import Path

from hpcfl.errors import UserError
from hpcfl.files.atomic import reason

LONGEST_NAME = 255  # bytes, as file systems have it
LONGEST_PATH = 4096 - 400  # bytes: what Linux takes, less the names of what lies below
DEEPEST = 100  # folders above it


def check_working_folder() -> None:
    """Raise UserError where the working folder was deleted."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working folder cannot be used: {reason(error)}; go to another folder"
        ) from None


def check_folder(path: Path) -> None:
    """Raise UserError if ``path`` cannot become a folder.

    A link to a folder counts as a folder.
    """
    _check(path)
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{path}: {_kind(path)}, not a folder; choose another --out")


def check_file(path: Path) -> None:
    """Raise UserError if no file can be written at ``path``.

    A regular file is replaced. Other kinds of files stay, and links are not followed.
    """
    _check(path)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise UserError(f"{path}: {_kind(path)}, not a file; choose another --out")


def _check(path: Path) -> None:
    """Check the name, length and parent folders of a path. Raises UserError."""
    written = os.fsencode(path)
    if b"\0" in written:
        raise UserError(f"{written!a}: has a NUL in its name; choose another --out")
    try:
        written.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{written!a}: is not UTF-8, and could be shown nowhere; choose "
            "another --out"
        ) from None
    longest = max(len(os.fsencode(name)) for name in (path.name, *path.parts))
    if longest > LONGEST_NAME or len(written) > LONGEST_PATH:
        raise UserError(f"{path}: is too long a path; choose another --out")
    if len(path.parts) > DEEPEST:
        raise UserError(
            f"{path}: lies in more than {DEEPEST} folders; choose another --out"
        )
    try:
        if os.path.realpath(path) == os.path.sep:
            raise UserError(f"{path}: the root of all folders; choose another --out")
        above = next(one for one in path.absolute().parents if os.path.lexists(one))
        if not stat.S_ISDIR(above.stat().st_mode):
            raise NotADirectoryError(f"{above} is {_kind(above)}, not a folder")
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}; choose another --out") from None


def _kind(path: Path) -> str:
    """Return the kind of file at a path in words."""
    if path.is_symlink():
        return "a link" if path.exists() else "a link that leads nowhere"
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a device or pipe"
