"""Whose a file in a run's folder is.

Every file names the run that wrote it by ``Config.fingerprint``. Somebody may copy
files of another run into the folder: what is not this run's own is never read as if it
were.
"""

from pathlib import Path

from hpcfl.errors import UserError
from hpcfl.files.atomic import Damaged

SHOWN = 200  # the most letters of a name that somebody else may have written


class AnotherRun(Damaged):
    """A file is intact, but of another run than the one whose folder it lies in."""


def check(written_by: object, run: str | None) -> None:
    """Raise AnotherRun unless the file that names ``written_by`` is of ``run``.

    run: the fingerprint of the run that is read; None where nothing says which.
    """
    if run is not None and written_by != run:
        raise AnotherRun(str(written_by or "one that it does not name")[:SHOWN])


def require(path: Path, written_by: str | None, run: str) -> None:
    """Raise UserError unless the file at ``path``, which names ``written_by``, is of
    ``run``.
    """
    try:
        check(written_by, run)
    except AnotherRun as error:
        raise UserError(left_out(path, error)) from None


def left_out(path: Path, error: Damaged) -> str:
    """One line on a file that is not read, and what to do about it."""
    if isinstance(error, AnotherRun):
        return f"{path}: of another run ({error}), left out; move it out of this folder"
    return f"{path}: damaged, left out ({error})"
