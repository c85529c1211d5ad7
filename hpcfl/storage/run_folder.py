"""Folders of runs, sweeps and tunings: identity, availability, and starting over.

The folder of a run contains ``run.json`` (identity and resolved configuration),
``partition.h5``, ``metrics.h5``, ``rounds/``, ``checkpoints/``, ``.lock`` and
``failure.txt``. ``run_status.py`` computes the progress of a run.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import make_identity
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest, results
from hpcfl.storage.forms import FileName, RunFile
from hpcfl.storage.lock import NAME as LOCK
from hpcfl.storage.lock import FolderLock

if TYPE_CHECKING:
    from hpcfl.experiment.config import Config

RUN = "run.json"
FORMAT = 3  # format of all files in a run's folder
PARTITION = "partition.h5"
FAILURE = "failure.txt"  # reason why the last attempt failed
REASON_BYTES = 1 << 16  # limit for that file
CHECKPOINTS = "checkpoints"
# files and folders that show that a folder holds a run of hpcfl
FILES = (RUN, PARTITION, results.MERGED, FAILURE)
FOLDERS = (results.ROUNDS, CHECKPOINTS)
EVIDENCE = (*FILES, *FOLDERS)
# advice about a file of another run
REMOVE_OTHERS = (
    "move it out of this folder, or choose another --out, or --fresh to start over"
)
CELLS = "sweep.json"  # names of all cells, in the folder of a sweep
# file and sweeps in the folder of a tuning, see ``tune_folder.py``
TUNE = "tune.json"
SEARCH, FINAL, UNTUNED, MEASURED = "search", "final", "untuned", "measured"
JOBS = "jobs"  # submitted jobs, see ``cluster/submission_folder.py``
NO_RESULTS = (LOCK, JOBS)  # other files and folders allowed before the first run


class OtherLength(UserError):
    """Error for a run that was begun with another number of rounds.

    Attributes:
        begun_for: number of rounds for which the run was begun.
    """

    def __init__(self, line: str, begun_for: int) -> None:
        super().__init__(line)
        self.begun_for = begun_for


def is_run(folder: Path) -> bool:
    """Return whether a folder holds ``run.json`` or results. Raises UserError if it
    cannot be read.
    """
    try:
        return any((folder / name).exists() for name in (RUN, results.MERGED))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be read ({error.strerror}); make it readable, or name "
            "other folders"
        ) from None


def examine(folder: Path, config: "Config", fresh: bool) -> bool:
    """Return whether the run of ``config`` is complete in the folder, with an intact
    state.

    Nothing is changed.

    Args:
        folder: folder of the run.
        config: configuration of the run.
        fresh: Whether the run starts over; the result is then False.

    Raises:
        UserError: The folder cannot be read, holds no run, belongs to another
            configuration or has results of another run, or the run cannot end after
            ``config.rounds`` rounds.
    """
    _refuse_other_files(folder)
    if fresh:
        _refuse_working_folder(folder)
        return False
    if folders := [name for name in FILES if (folder / name).is_dir()]:
        raise UserError(
            f"{folder / folders[0]}: is a folder instead of a file; choose another --out, or "
            "--fresh to move the whole folder aside"
        )
    run, checkpoints = config.fingerprint(), folder / CHECKPOINTS
    with _refuse_unreadable():
        newest = manifest.find_latest(checkpoints, run)
    refuse_another(
        folder, config, "choose another --out or name, or --fresh to move it aside"
    )
    with _refuse_unreadable():
        others, completed = results.examine(folder, run)
    if others:
        raise UserError(f"{others[0]}; {REMOVE_OTHERS}")
    done = newest.round if newest else 0
    if is_finished(config.rounds, done, completed):
        whole = manifest.find_latest(checkpoints, run, verified=True)
        return is_finished(config.rounds, whole.round if whole else 0, completed)
    finished = max([done, *completed])
    if finished > config.rounds:
        raise UserError(
            f"rounds = {config.rounds}: this run has already finished {finished} rounds; "
            "set rounds to more, or use --fresh"
        )
    begun_for = int(newest.meta.get("rounds", 0)) if newest else config.rounds
    if config.needs_rounds and begun_for != config.rounds:
        raise OtherLength(
            f"rounds = {config.rounds}: this run was begun with rounds = {begun_for}, on which "
            "every round depends; choose another --out or name, or --fresh",
            begun_for,
        )
    return False


def tidy(folder: Path) -> None:
    """Remove temporary files of killed processes from the folder of a complete run.

    Nothing happens if another process has locked the folder or it cannot be written.
    """
    places = [folder, folder / CHECKPOINTS, folder / results.ROUNDS]
    littered = [path for path in places if any(path.glob(atomic.TEMPORARY))]
    if not littered:
        return
    with suppress(UserError, RunFailure), FolderLock(folder):
        for path in littered:
            atomic.remove_temporaries(path)


def is_finished(rounds: int, done: int, completed: list[int]) -> bool:
    """Return whether a run was played and scored to the end.

    A scored run with only an earlier checkpoint is not finished, because it can compute
    its last state again. A scored run without checkpoints is finished, because its
    results are complete.

    Args:
        rounds: number of rounds of the run.
        done: number of rounds in the newest checkpoint, 0 without one.
        completed: numbers of rounds as in ``Results``.
    """
    return rounds in completed and not 0 < done < rounds


class AnotherFormat(UserError):
    """Error for a folder in the format of another version of hpcfl."""


@dataclass
class Claim:
    """A folder that this process has locked for its run; ``begin`` makes the first
    change.

    Attributes:
        folder: the folder.
        config: configuration of the run.
        fresh: Whether to move the folder's contents aside.
        lock: lock of the folder.
        note: note for the user on a damaged ``run.json``, which is written again, or
            None.
        begun: Whether ``begin`` has succeeded.
        failure: reason why the previous attempt failed, or None; ``begin`` removes its
            file.
    """

    folder: Path
    config: "Config"
    fresh: bool
    lock: FolderLock

    def __post_init__(self) -> None:
        folder = self.folder
        self.note: str | None = None
        self.begun = False
        self.failure = read_failure(folder)
        self._is_new = not any((folder / name).exists() for name in EVIDENCE)
        try:
            read(folder)
        except UserError as error:
            self.note = str(error)

    def begin(self) -> None:
        """Write ``run.json``, so that the folder belongs to this run.

        With ``fresh`` the old folder is moved aside first.

        Raises:
            UserError: A new folder cannot be written; it is left empty.
            RunFailure: A folder with a run cannot be written.
        """
        try:
            self._begin()
        except RunFailure as error:
            if not self._is_new:
                raise
            with suppress(OSError):
                (self.folder / RUN).unlink(missing_ok=True)
            raise UserError(
                f"{error}; choose another --out, or make this one writable and free some "
                "space"
            ) from error

    def _begin(self) -> None:
        if self.fresh and not self._is_new:
            with atomic.explain_errors(self.folder):
                folder = self.folder.resolve()  # a link to a folder stays
                folder.rename(_find_free_path(folder))
                folder.mkdir()
            self.lock.relock()
        text = encode_run(self.config.resolved())
        if _read_content(self.folder / RUN) != text:
            atomic.write(self.folder / RUN, text)
        with atomic.explain_errors(self.folder):
            (self.folder / FAILURE).unlink(missing_ok=True)
            atomic.remove_temporaries(self.folder)
        self.lock.sign()
        self.begun = True


@contextmanager
def claim(folder: Path, config: "Config", fresh: bool) -> Iterator[Claim | None]:
    """Lock a folder for this process inside the block; a missing folder is created.

    The block receives None if the run is already complete. A failure inside the block
    after ``Claim.begin`` is written to ``failure.txt``.

    Args:
        folder: folder of the run.
        config: configuration of the run.
        fresh: Whether the run starts over.

    Raises:
        UserError: The folder is locked or cannot be written, or an error of
            ``examine``.
    """
    examine(folder, config, fresh)
    with ExitStack() as locks:
        try:
            lock = locks.enter_context(FolderLock(folder))
        except RunFailure as error:
            raise UserError(
                f"{error}; choose another --out, or make this one writable and free some "
                "space"
            ) from error
        if examine(folder, config, fresh):
            yield None
            return
        ours = Claim(folder, config, fresh, lock)
        try:
            yield ours
        except Exception as error:
            was_moved = not lock.is_in_place()
            if ours.begun and not was_moved and not isinstance(error, Interrupted):
                _keep_failure(folder / FAILURE, error)
            raise


def read(folder: Path) -> RunFile | None:
    """Return the ``run.json`` of a folder, or None without one.

    Raises UserError if it is damaged, AnotherFormat if another version of hpcfl wrote
    it.
    """
    try:
        table = untrusted_files.read_json(folder / RUN, dict[str, Any])
        if isinstance(table.get("format"), int) and table["format"] != FORMAT:
            raise AnotherFormat(
                f"{folder}: was written by another version of hpcfl, in format "
                f"{table['format']} instead of {FORMAT}; read it with that "
                "version, or choose another --out, or --fresh to move it aside"
            )
        return untrusted_files.checked(table, RunFile)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{folder / RUN}: damaged ({error}); repeat the command of the run, which writes it "
            "again"
        ) from None


def encode_run(config: Mapping[str, Any]) -> bytes:
    """Return the bytes of a ``run.json`` with a resolved configuration."""
    return json.dumps({"format": FORMAT, "config": config}, indent=1).encode()


def read_failure(folder: Path) -> str | None:
    """Return the reason why the last attempt in the folder failed, or None."""
    try:
        return (
            untrusted_files.read_bytes(folder / FAILURE, REASON_BYTES)
            .decode(errors="replace")
            .strip()
        )
    except (FileNotFoundError, Damaged):
        return None


def _keep_failure(path: Path, error: Exception) -> None:
    with suppress(RunFailure):  # the disk itself may have failed
        atomic.write(
            path, (" ".join(str(error).split()) or type(error).__name__).encode()
        )


def _refuse_other_files(folder: Path) -> None:
    """Raise UserError for a folder with files that do not belong to a run of hpcfl.

    All files that a killed run may leave belong to a run.
    """
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UserError(
            f"{folder}: is a file, not a folder; choose another --out"
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be read ({error.strerror}); choose another --out"
        ) from None
    if links := [name for name in (*FOLDERS, JOBS) if (folder / name).is_symlink()]:
        raise UserError(
            f"{folder / links[0]}: is a link, and files at its target would be written and "
            "removed; choose another --out"
        )
    if any(name in EVIDENCE for name in entries):
        return
    others = [
        name
        for name in entries
        if name not in NO_RESULTS and not atomic.is_temporary(name)
    ]
    if CELLS in others:
        raise UserError(
            f"{folder}: holds a sweep, not a single run; choose another --out or name"
        )
    if others:
        raise UserError(
            f"{folder}: holds '{others[0]}', but no run of hpcfl; choose another --out"
        )


def refuse_another(folder: Path, config: "Config", advice: str) -> None:
    """Raise UserError, which ends with ``advice``, for a folder whose ``run.json`` has
    another configuration.
    """
    try:
        run_file = read(folder)
    except AnotherFormat:
        raise
    except UserError:
        return
    if run_file is None:
        return
    begun = experiment_file.flatten(make_identity(run_file["config"]))
    asked = experiment_file.flatten(make_identity(config.resolved()))
    if differences := list_differences(begun, asked):
        raise UserError(
            f"{folder}: belongs to another configuration ({'; '.join(differences)}); {advice}"
        )


def _refuse_working_folder(folder: Path) -> None:
    """Raise UserError if ``--fresh`` would move the working folder, so that the relative
    path ``folder`` would lead to the moved one.
    """
    if folder.is_absolute():
        return
    is_used = any((folder / name).exists() for name in EVIDENCE)
    if is_used and Path.cwd().is_relative_to(folder.resolve()):
        raise UserError(
            f"{folder}: --fresh cannot move the working folder; change to another folder"
        )


@contextmanager
def _refuse_unreadable() -> Iterator[None]:
    """Convert a RunFailure in the block to a UserError."""
    try:
        yield
    except RunFailure as error:
        raise UserError(
            f"{error}; choose another --out, or make it readable"
        ) from error


def _read_content(path: Path) -> bytes | None:
    """Return the bytes of a small file; None if it is missing or unreadable."""
    try:
        return untrusted_files.read_bytes(path, untrusted_files.JSON_LIMIT)
    except (FileNotFoundError, Damaged):
        return None


def list_differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return a text for each key with different values in two flat tables.

    Args:
        there: table of the folder.
        here: table of the experiment.
    """
    missing = "(missing)"
    return [
        f"{key}: {there.get(key, missing)} there, {here.get(key, missing)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, missing) != here.get(key, missing)
    ]


def is_aside(name: str) -> bool:
    """Return whether a folder's name is one that ``--fresh`` gives to a moved folder."""
    return re.search(r"\.\d{8}-\d{6}(-\d+)?$", name) is not None


def _find_free_path(folder: Path) -> Path:
    """Return an unused path for a moved folder: its name, cut if long, and the time."""
    start = folder.name.encode()[:230].decode(errors="ignore")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [f"{start}.{stamp}", *(f"{start}.{stamp}-{n}" for n in range(2, 100))]
    return next(path for name in names if not (path := folder.with_name(name)).exists())


def record_cells(folder: Path, cells: Sequence[str]) -> None:
    """Write the names of a sweep's cells into its folder; a missing folder is created.

    Raises RunFailure.
    """
    with atomic.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / CELLS, json.dumps(list(cells), indent=1).encode())


def list_runs(folder: Path) -> list[str]:
    """Return the names of the runs in a folder, except those that ``--fresh`` moved
    aside.
    """
    if not folder.is_dir():
        return []
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if is_run(entry) and not is_aside(entry.name)
    )


def read_cells(folder: Path) -> list[str]:
    """Return the names of the sweep's cells; empty without a readable list."""
    try:
        return untrusted_files.read_json(folder / CELLS, list[FileName])
    except (FileNotFoundError, Damaged):
        return []


def is_tuning(folder: Path) -> bool:
    """Return whether a folder is the folder of a tuning."""
    return os.path.isfile(folder / TUNE)


def is_left_out(folder: Path, run: Path) -> bool:
    """Return whether tables of a folder skip a run below it: a trial or reference of a
    tuning.

    A table of the folder of the sweep itself includes the run.

    Args:
        folder: folder of the table.
        run: folder of the run.
    """
    inside = run.relative_to(folder).parts
    for depth, name in enumerate(inside):
        tuning = folder.joinpath(*inside[:depth])
        if name in (SEARCH, UNTUNED, MEASURED) and is_tuning(tuning):
            return True
    return False
