"""Checks that a file in a run's folder belongs to this run.

Every file names its run by ``Config.fingerprint``. A user may copy files of another run
into the folder; the checks keep them from being read.
"""

from pathlib import Path

from hpcfl.errors import UserError
from hpcfl.files.atomic import Damaged

SHOWN = 200  # the most letters of a name from an untrusted file


class AnotherRun(Damaged):
    """An intact file of another run than that of its folder."""


def check(written_by: object, run: str | None) -> None:
    """Raise AnotherRun unless the fingerprint ``written_by`` is that of ``run``.

    run: the fingerprint of the run that is read; None if it is unknown.
    """
    if run is not None and written_by != run:
        raise AnotherRun(str(written_by or "one that it does not name")[:SHOWN])


def require(path: Path, written_by: str | None, run: str) -> None:
    """Raise UserError unless the file's fingerprint ``written_by`` is that of ``run``."""
    try:
        check(written_by, run)
    except AnotherRun as error:
        raise UserError(describe_skipped(path, error)) from None


def describe_skipped(path: Path, error: Damaged) -> str:
    """Return a line on a file that is not read, with advice."""
    if isinstance(error, AnotherRun):
        return f"{path}: of another run ({error}), left out; move it out of this folder"
    return f"{path}: damaged, left out ({error})"
