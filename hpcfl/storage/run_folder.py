"""The folder of one run: whose it is, and starting it over.

``run.json`` (the resolved configuration), ``partition.h5``, ``metrics.h5`` with ``rounds/``, ``checkpoints/``, ``.lock``.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from hpcfl.config import Config
from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.storage import atomic
from hpcfl.storage.lock import FolderLock

RUN = "run.json"
FAILURE = "failure.txt"  # why the last attempt failed
NO_RESULTS = (".lock", "jobs")  # may lie in a folder before its first run


@contextmanager
def claim(folder: Path, config: Config, fresh: bool) -> Iterator[None]:
    """The folder, made where missing, is this configuration's and nobody else's inside the block.

    ``fresh`` moves what is there aside first. Raises UserError if the folder belongs to another configuration or holds
    something else, is in use or cannot be written: a disk that is full now is bad input, one that fills up later a failure.
    """
    _check(folder, config, fresh)
    with ExitStack() as locks:
        with _usable():
            _take(folder, config, fresh, locks)
        with _failure_kept(folder / FAILURE):
            yield


def _take(folder: Path, config: Config, fresh: bool, locks: ExitStack) -> None:
    """Make and lock the folder, with an old run moved aside if ``fresh``, and say whose it is."""
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    locks.enter_context(FolderLock(folder))
    if fresh and (folder / RUN).exists():
        with atomic.explained(folder):
            folder.rename(_aside(folder))
            folder.mkdir()
        locks.enter_context(FolderLock(folder))
    text = json.dumps({"identity": config.identity(), "config": config.resolved()}, indent=1)
    atomic.write(folder / RUN, text.encode())
    (folder / FAILURE).unlink(missing_ok=True)


@contextmanager
def _usable() -> Iterator[None]:
    """What the disk refuses before the run begins is bad input."""
    try:
        yield
    except RunFailure as error:
        raise UserError(f"{error}; choose another --out, or make this one writable and free some space") from error


def read(folder: Path) -> dict[str, Any] | None:
    """``run.json`` of a folder, None where there is none. Raises UserError if it is damaged."""
    try:
        return json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / RUN}: cannot be read ({error}); `--fresh` starts over") from None


def failure(folder: Path) -> str | None:
    """Why the last attempt to run in the folder failed; None if it did not, or could not say."""
    try:
        return (folder / FAILURE).read_text(encoding="utf-8").strip()
    except OSError:
        return None


@contextmanager
def _failure_kept(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, Interrupted):
            with suppress(RunFailure):  # a full disk, perhaps, which is what failed
                atomic.write(path, (" ".join(str(error).split()) or type(error).__name__).encode())
        raise


def _check(folder: Path, config: Config, fresh: bool) -> None:
    """Refuse a folder that is not this run's, before anything is touched."""
    try:
        entries = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file, not a folder; choose another --out") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); choose another --out") from None
    if RUN not in entries:
        if strangers := [name for name in entries if name not in NO_RESULTS]:
            raise UserError(f"{folder}: holds '{strangers[0]}' but no run of hpcfl; choose another --out")
        return
    there = None if fresh else read(folder)
    if there is None:
        return
    if differences := _differences(_flat(there["identity"]), _flat(config.identity())):
        raise UserError(f"{folder}: belongs to another configuration ({'; '.join(differences)}); "
                        "choose another --out or name, or --fresh to move it aside")


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    missing = "(nothing)"
    return [f"{key}: {there.get(key, missing)} there, {here.get(key, missing)} here"
            for key in sorted(there.keys() | here.keys()) if there.get(key, missing) != here.get(key, missing)]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def is_aside(folder: Path) -> bool:
    """Whether the folder's name says that ``--fresh`` moved it aside."""
    return re.search(r"\.\d{8}-\d{6}(-\d+)?$", folder.name) is not None


def _aside(folder: Path) -> Path:
    """A free name beside the folder, with the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = [f"{folder.name}.{stamp}", *(f"{folder.name}.{stamp}-{n}" for n in range(2, 100))]
    return next(path for name in names if not (path := folder.with_name(name)).exists())
