"""The folder of one run: its identity, its availability, and starting it over; and the
folders of sweeps and tunings, in which such folders are.

It contains ``run.json`` (the identity and the resolved configuration),
``partition.h5``, ``metrics.h5``, ``rounds/``, ``checkpoints/``,
``.lock`` and ``failure.txt``. ``run_status.py`` computes the progress of a run.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import identity
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest, results
from hpcfl.storage.forms import FileName, RunFile
from hpcfl.storage.lock import NAME as LOCK
from hpcfl.storage.lock import FolderLock
from hpcfl.storage.manifest import Manifest

if TYPE_CHECKING:
    from hpcfl.experiment.config import Config

RUN = "run.json"
FORMAT = 3  # of a run's folder, all of its files together
PARTITION = "partition.h5"
FAILURE = "failure.txt"  # why the last attempt failed
REASON_BYTES = 1 << 16  # most bytes that are read of that file
CHECKPOINTS = "checkpoints"
# a folder with one of these holds a run of hpcfl
EVIDENCE = (
    RUN,
    PARTITION,
    results.MERGED,
    results.ROUNDS,
    CHECKPOINTS,
    FAILURE,
)
FILES = (RUN, PARTITION, results.MERGED, FAILURE)
FOLDERS = (results.ROUNDS, CHECKPOINTS)
# what to do about a file of another run
REMOVE_OTHERS = (
    "move it out of this folder, or choose another --out, or --fresh to start over"
)
CELLS = "sweep.json"  # the names of all cells, in the folder of a sweep
# the folder of a tuning has the first, and sweeps of these names, see ``tune_folder.py``
TUNE = "tune.json"
SEARCH, FINAL, UNTUNED, MEASURED = "search", "final", "untuned", "measured"
JOBS = "jobs"  # the submitted jobs, see ``cluster/submission_folder.py``
NO_RESULTS = (LOCK, JOBS)  # other names that a folder may have before its first run


class OtherLength(UserError):
    """Error for a run that was begun for another number of rounds.

    Attributes:
        begun_for: that number.
    """

    def __init__(self, line: str, begun_for: int) -> None:
        super().__init__(line)
        self.begun_for = begun_for


def is_run(folder: Path) -> bool:
    """Return whether a folder holds readable parts of a run."""
    return any((folder / name).exists() for name in (RUN, results.MERGED))


def examine(folder: Path, config: "Config", fresh: bool) -> bool:
    """Return whether the run of ``config`` is complete in the folder, with an intact
    state.

    Nothing is changed. With ``fresh`` the result is False for any run. Raises UserError
    if the folder cannot be read, holds no run, belongs to another configuration or has
    results of another run. It is also raised for a run that cannot end after
    ``config.rounds`` rounds.
    """
    _refuse_strangers(folder)
    if fresh:
        return False
    if folders := [name for name in FILES if (folder / name).is_dir()]:
        raise UserError(
            f"{folder / folders[0]}: is a folder where a file belongs; choose another --out, or "
            "--fresh to move all aside"
        )
    run, checkpoints = config.fingerprint(), folder / CHECKPOINTS
    newest = _find_newest(checkpoints, run)
    _refuse_another(folder, config)
    others, completed = results.examine(folder, run)
    if others:
        raise UserError(f"{others[0]}; {REMOVE_OTHERS}")
    done = newest.round if newest else 0
    if is_finished(config.rounds, done, completed):
        whole = manifest.find_latest(checkpoints, run, verified=True)
        return is_finished(config.rounds, whole.round if whole else 0, completed)
    if done > config.rounds:
        raise UserError(
            f"rounds = {config.rounds}: this run has done {done} already; "
            "ask for more, or --fresh"
        )
    begun_for = int(newest.meta.get("rounds", 0)) if newest else config.rounds
    if config.needs_rounds and begun_for != config.rounds:
        raise OtherLength(
            f"rounds = {config.rounds}: this run was begun for {begun_for} and every round "
            "depends on that number; choose another --out or name, or --fresh",
            begun_for,
        )
    return False


def tidy(folder: Path) -> None:
    """Remove the temporary files of killed writers from the folder of a complete run.

    Nothing happens if another process has the folder or it cannot be written.
    """
    places = [folder, folder / CHECKPOINTS, folder / results.ROUNDS]
    littered = [path for path in places if any(path.glob(atomic.TEMPORARY))]
    if not littered:
        return
    with suppress(UserError, RunFailure), FolderLock(folder):
        for path in littered:
            atomic.remove_temporaries(path)


def is_finished(rounds: int, done: int, completed: list[int]) -> bool:
    """Return whether a run of so many ``rounds`` was played and scored to the end.

    done: the rounds in its newest checkpoint, 0 without one. completed: as in
    ``Results``. A scored run with only an earlier checkpoint is not finished: it can
    compute its last state again. A scored run without checkpoints is finished, because
    its scores count.
    """
    return rounds in completed and not 0 < done < rounds


class AnotherFormat(UserError):
    """A folder of another version of hpcfl whose files this version does not read."""


@dataclass
class Claim:
    """A folder that this process has locked for its run; ``begin`` makes the first
    change.

    Attributes:
        fresh: whether to move the folder's contents aside.
    """

    folder: Path
    config: "Config"
    fresh: bool
    lock: FolderLock

    def __post_init__(self) -> None:
        folder = self.folder
        self.note: str | None = (
            None  # for the user: a note on a damaged ``run.json``, which is written again
        )
        self.begun = False
        self.failure = read_failure(
            folder
        )  # why the attempt before this one failed; ``begin`` removes the file
        self._is_new = not any((folder / name).exists() for name in EVIDENCE)
        try:
            read(folder)
        except UserError as error:
            self.note = str(error)

    def begin(self) -> None:
        """Write ``run.json``, so that the folder belongs to this run.

        With ``fresh`` the old folder is moved aside first. Raises UserError if a new
        folder cannot be written, and leaves it empty. Raises RunFailure if a folder
        with a run cannot be written.
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
            with atomic.explained(self.folder):
                self.folder.rename(_find_free_path(self.folder))
                self.folder.mkdir()
            self.lock.relock()
        text = encode_run(self.config.resolved())
        if _read_content(self.folder / RUN) != text:
            atomic.write(self.folder / RUN, text)
        with atomic.explained(self.folder):
            (self.folder / FAILURE).unlink(missing_ok=True)
            atomic.remove_temporaries(self.folder)
        self.lock.sign()
        self.begun = True


@contextmanager
def claim(folder: Path, config: "Config", fresh: bool) -> Iterator[Claim | None]:
    """Lock the folder, made if missing, for this process inside the block.

    The block receives None if the run is complete by now. A failure inside the block
    after ``Claim.begin`` is written to ``failure.txt``. Raises the exceptions of
    ``examine``, and UserError if the folder is in use or cannot be written.
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
            if ours.begun and not isinstance(error, Interrupted):
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
                f"{table['format']} where this one has {FORMAT}; look at it with that "
                "version, or choose another --out, or --fresh to move it aside"
            )
        return untrusted_files.checked(table, RunFile)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{folder / RUN}: damaged ({error}); the command that began the run writes it "
            "again"
        ) from None


def encode_run(config: Mapping[str, Any]) -> bytes:
    """Return the bytes of a ``run.json`` with a resolved configuration."""
    return json.dumps({"format": FORMAT, "config": config}, indent=1).encode()


def read_failure(folder: Path) -> str | None:
    """Return why the last attempt in the folder failed; None without a failure or a
    reason.
    """
    try:
        return (
            untrusted_files.read_bytes(folder / FAILURE, REASON_BYTES)
            .decode(errors="replace")
            .strip()
        )
    except (FileNotFoundError, Damaged):
        return None


def _keep_failure(path: Path, error: Exception) -> None:
    if not (path.parent / RUN).exists():  # the folder was moved away under the run
        return
    with suppress(RunFailure):  # the disk itself may have failed
        atomic.write(
            path, (" ".join(str(error).split()) or type(error).__name__).encode()
        )


def _refuse_strangers(folder: Path) -> None:
    """Refuse a folder with files that belong to no run of hpcfl. Raises UserError.

    All remains of a killed run count as a run's files.
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
            f"{folder / links[0]}: is a link, and files would be written and removed "
            "where it leads; choose another --out"
        )
    if any(name in EVIDENCE for name in entries):
        return
    strangers = [
        name
        for name in entries
        if name not in NO_RESULTS and not atomic.is_temporary(name)
    ]
    if CELLS in strangers:
        raise UserError(
            f"{folder}: holds a sweep, not a single run; choose another --out or name"
        )
    if strangers:
        raise UserError(
            f"{folder}: holds '{strangers[0]}' but no run of hpcfl; choose another --out"
        )


def _refuse_another(folder: Path, config: "Config") -> None:
    """Refuse a folder whose ``run.json`` has another configuration. Raises UserError."""
    try:
        run_file = read(folder)
    except AnotherFormat:
        raise
    except UserError:
        return
    if run_file is None:
        return
    begun = experiment_file.flat(identity(run_file["config"]))
    asked = experiment_file.flat(identity(config.resolved()))
    if differences := _list_differences(begun, asked):
        raise UserError(
            f"{folder}: belongs to another configuration ({'; '.join(differences)}); "
            "choose another --out or name, or --fresh to move it aside"
        )


def _find_newest(checkpoints: Path, run: str) -> Manifest | None:
    """Return the newest checkpoint, as ``manifest.find_latest`` finds it. Raises UserError."""
    try:
        return manifest.find_latest(checkpoints, run)
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


def _list_differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return a text for each key in which two flat tables differ, with both values."""
    missing = "(nothing)"
    return [
        f"{key}: {there.get(key, missing)} there, {here.get(key, missing)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, missing) != here.get(key, missing)
    ]


def is_aside(name: str) -> bool:
    """Return whether a folder's name is one of those that ``--fresh`` moves aside."""
    return re.search(r"\.\d{8}-\d{6}(-\d+)?$", name) is not None


def _find_free_path(folder: Path) -> Path:
    """Return a free path beside the folder: its name and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [
        f"{folder.name}.{stamp}",
        *(f"{folder.name}.{stamp}-{n}" for n in range(2, 100)),
    ]
    return next(path for name in names if not (path := folder.with_name(name)).exists())


def record_cells(folder: Path, cells: Sequence[str]) -> None:
    """Write the names of a sweep's cells into its folder, made if missing.

    Raises RunFailure.
    """
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / CELLS, json.dumps(list(cells), indent=1).encode())


def list_runs(folder: Path) -> list[str]:
    """Return the names of the runs in the folder, except those that ``--fresh`` moved
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
    """Return the names of the sweep's cells; none without a readable list."""
    try:
        return untrusted_files.read_json(folder / CELLS, list[FileName])
    except (FileNotFoundError, Damaged):
        return []


def is_tuning(folder: Path) -> bool:
    """Return whether a folder is that of a tuning."""
    return (folder / TUNE).is_file()


def leaves_out(folder: Path, run: Path) -> bool:
    """Return whether tables of ``folder`` skip a run below it: a tuning's trial or
    reference.

    A table of the sweep's own folder includes the run.
    """
    inside = run.relative_to(folder).parts
    for depth, name in enumerate(inside):
        tuning = folder.joinpath(*inside[:depth])
        if name in (SEARCH, UNTUNED, MEASURED) and is_tuning(tuning):
            return True
    return False
