"""The folder of one run: which run it belongs to, whether it may be used, and starting
it over.

In it lie ``run.json`` (the identity and the resolved configuration), ``partition.h5``,
``metrics.h5`` with its copy and ``rounds/``, ``checkpoints/``, ``.lock`` and
``failure.txt``. ``run_status.py`` says how far a run is.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.experiment import protocols
from hpcfl.experiment.config import Config, identity
from hpcfl.files import atomic, foreign
from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest, results
from hpcfl.storage.forms import RunFile
from hpcfl.storage.lock import NAME as LOCK
from hpcfl.storage.lock import FolderLock
from hpcfl.storage.manifest import Manifest

RUN = "run.json"
FORMAT = 3  # of a run's folder, all of its files together
PARTITION = "partition.h5"
FAILURE = "failure.txt"  # why the last attempt failed
REASON_BYTES = 1 << 16  # most that is read of that file
CHECKPOINTS = "checkpoints"
# where one of these is, a run of hpcfl was here
EVIDENCE = (
    RUN,
    PARTITION,
    results.MERGED,
    results.COPY,
    results.ROUNDS,
    CHECKPOINTS,
    FAILURE,
)
FILES = (RUN, PARTITION, results.MERGED, results.COPY, FAILURE)
FOLDERS = (results.ROUNDS, CHECKPOINTS)
CELLS = "sweep.json"  # in the folder of a sweep, see ``sweep_folder.py``
JOBS = "jobs"  # what was submitted, see ``cluster/submission_folder.py``
NO_RESULTS = (LOCK, JOBS)  # what else may lie in a folder before its first run


def is_run(folder: Path) -> bool:
    """Whether a folder holds something of a run that can be looked at."""
    return any((folder / name).exists() for name in (RUN, results.MERGED, results.COPY))


def examine(folder: Path, config: Config, fresh: bool) -> bool:
    """Whether the run of ``config`` is complete in the folder, its last state intact to
    the last byte.

    Nothing is changed. With ``fresh`` the answer is False, whatever run is there.
    Raises UserError if the folder cannot be read, holds something else than a run,
    belongs to another configuration, or has a run that cannot end after
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
    newest = _newest(folder)
    _refuse_another(folder, config)
    _refuse_others(folder, config.fingerprint())
    done, completed = newest.round if newest else 0, results.completed(folder)
    if is_finished(config.rounds, done, completed):
        whole = manifest.intact(folder / CHECKPOINTS)
        return is_finished(config.rounds, whole.round if whole else 0, completed)
    if done > config.rounds:
        raise UserError(
            f"rounds = {config.rounds}: this run has done {done} already; "
            "ask for more, or --fresh"
        )
    begun_for = newest.meta.get("rounds") if newest else config.rounds
    if config.needs_rounds and begun_for != config.rounds:
        raise UserError(
            f"rounds = {config.rounds}: this run was begun for {begun_for} and every round "
            "depends on that number; choose another --out or name, or --fresh"
        )
    return False


def tidy(folder: Path) -> None:
    """Remove what a killed writer left of files in the folder of a complete run, unless
    another process has the folder or it cannot be written.
    """
    places = [folder, folder / CHECKPOINTS, folder / results.ROUNDS]
    littered = [path for path in places if any(path.glob(atomic.TEMPORARY))]
    if not littered:
        return
    with suppress(UserError, RunFailure), FolderLock(folder):
        for path in littered:
            atomic.remove_temporaries(path)


def is_finished(rounds: int, done: int, completed: list[int]) -> bool:
    """Whether a run of so many ``rounds`` was played and scored to the end.

    done: the rounds in its newest checkpoint, 0 without one. completed: as in
    ``Results``. A run that was scored but has only an earlier checkpoint left is not
    finished, for it can make its last state again; one that has none left is, because
    the scores are what counts.
    """
    return rounds in completed and not 0 < done < rounds


class AnotherFormat(UserError):
    """A folder was written by a version of hpcfl whose files this one does not read."""


class Claim:
    """A folder that this process has locked for its run. Nothing in it changes before
    ``begin``.
    """

    def __init__(
        self, folder: Path, config: Config, fresh: bool, lock: FolderLock
    ) -> None:
        self.folder = folder
        self.note: str | None = (
            None  # for the user: that ``run.json`` was damaged and is written again
        )
        self.begun = False
        self.failure = failure(
            folder
        )  # why the attempt before this one failed, which ``begin`` forgets
        self.fresh = fresh  # whether what lies in the folder is to be moved aside
        self._config, self._lock = config, lock
        self._is_new = not any((folder / name).exists() for name in EVIDENCE)
        try:
            read(folder)
        except UserError as error:
            self.note = str(error)

    def begin(self) -> None:
        """Write ``run.json``: the folder is this run's now. With ``fresh`` the old one
        is moved aside first.

        Raises UserError if a new folder cannot be written, and then leaves nothing in
        it; RunFailure if one with a run cannot.
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
                self.folder.rename(_aside(self.folder))
                self.folder.mkdir()
            self._lock.relock()
        text = described(self._config.resolved())
        if _content(self.folder / RUN) != text:
            atomic.write(self.folder / RUN, text)
        with atomic.explained(self.folder):
            (self.folder / FAILURE).unlink(missing_ok=True)
            atomic.remove_temporaries(self.folder)
        self._lock.sign()
        self.begun = True


@contextmanager
def claim(folder: Path, config: Config, fresh: bool) -> Iterator[Claim | None]:
    """The folder, made where missing, is this process's own inside the block.

    Yields None where the run is complete by now. What fails inside the block after
    ``Claim.begin`` is written to ``failure.txt``. Raises what ``examine`` raises, and
    UserError if the folder is in use or cannot be written.
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
    """The ``run.json`` of a folder; None where there is none. Raises UserError if it is
    damaged, AnotherFormat if another version of hpcfl wrote it.
    """
    try:
        table = foreign.read_json(folder / RUN, dict[str, Any])
        if isinstance(table.get("format"), int) and table["format"] != FORMAT:
            raise AnotherFormat(
                f"{folder}: was written by another version of hpcfl, in format "
                f"{table['format']} where this one has {FORMAT}; look at it with that "
                "version, or choose another --out, or --fresh to move it aside"
            )
        return foreign.checked(table, RunFile)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{folder / RUN}: damaged ({error}); the command that began the run writes it "
            "again"
        ) from None


def described(config: Mapping[str, Any]) -> bytes:
    """The bytes of a ``run.json`` with a resolved configuration."""
    return json.dumps({"format": FORMAT, "config": config}, indent=1).encode()


def failure(folder: Path) -> str | None:
    """Why the last attempt to run in the folder failed; None if it did not, or left no
    reason.
    """
    try:
        return (
            foreign.read_bytes(folder / FAILURE, REASON_BYTES)
            .decode(errors="replace")
            .strip()
        )
    except (FileNotFoundError, Damaged):
        return None


def _keep_failure(path: Path, error: Exception) -> None:
    if not (path.parent / RUN).exists():  # the folder was moved away under the run
        return
    with suppress(RunFailure):  # what failed may be the disk itself
        atomic.write(
            path, (" ".join(str(error).split()) or type(error).__name__).encode()
        )


def _refuse_strangers(folder: Path) -> None:
    """Refuse a folder that holds files, but none of a run of hpcfl. Raises UserError.

    Whatever a run leaves that is killed at any moment counts as a run's.
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


def _refuse_another(folder: Path, config: Config) -> None:
    """Refuse a folder whose ``run.json`` is of another configuration. Raises UserError."""
    try:
        run_file = read(folder)
    except AnotherFormat:
        raise
    except UserError:
        return
    if run_file is None:
        return
    begun = protocols.flat(identity(run_file["config"]))
    asked = protocols.flat(identity(config.resolved()))
    if differences := _differences(begun, asked):
        raise UserError(
            f"{folder}: belongs to another configuration ({'; '.join(differences)}); "
            "choose another --out or name, or --fresh to move it aside"
        )


def _refuse_others(folder: Path, run: str) -> None:
    """Refuse a folder in which files of another run lie, which this one would remove.

    run: the fingerprint of the run that is asked for. Raises UserError.
    """
    checkpoints = manifest.others(folder / CHECKPOINTS, run)
    for line in [*checkpoints, *results.others(folder, run)]:
        raise UserError(f"{line}, or choose another --out, or --fresh to start over")


def _newest(folder: Path) -> Manifest | None:
    """The newest checkpoint, as ``manifest.latest`` finds it. Raises UserError."""
    try:
        return manifest.latest(folder / CHECKPOINTS)
    except RunFailure as error:
        raise UserError(
            f"{error}; choose another --out, or make it readable"
        ) from error


def _content(path: Path) -> bytes | None:
    """The bytes of a small file; None where it is missing or cannot be read."""
    try:
        return foreign.read_bytes(path, foreign.JSON_LIMIT)
    except (FileNotFoundError, Damaged):
        return None


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """A text for each key in which two flat tables differ, with both values."""
    missing = "(nothing)"
    return [
        f"{key}: {there.get(key, missing)} there, {here.get(key, missing)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, missing) != here.get(key, missing)
    ]


def is_aside(name: str) -> bool:
    """Whether a folder's name says that ``--fresh`` moved it aside."""
    return re.search(r"\.\d{8}-\d{6}(-\d+)?$", name) is not None


def _aside(folder: Path) -> Path:
    """A path beside the folder that is free: its name and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [
        f"{folder.name}.{stamp}",
        *(f"{folder.name}.{stamp}-{n}" for n in range(2, 100)),
    ]
    return next(path for name in names if not (path := folder.with_name(name)).exists())
