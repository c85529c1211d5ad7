"""The folder of a sweep: the runs of its cells, and a file with the names of all cells."""

import json
from collections.abc import Sequence
from pathlib import Path

from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage import run_folder
from hpcfl.storage.forms import FileName
from hpcfl.storage.run_folder import CELLS


def record(folder: Path, cells: Sequence[str]) -> None:
    """Write the names of a sweep's cells into its folder, made if missing.

    Raises RunFailure.
    """
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / CELLS, json.dumps(list(cells), indent=1).encode())


def there(folder: Path) -> list[str]:
    """Return the names of the runs in the folder, except those that ``--fresh`` moved
    aside.
    """
    if not folder.is_dir():
        return []
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if run_folder.is_run(entry) and not run_folder.is_aside(entry.name)
    )


def cells(folder: Path) -> list[str]:
    """Return the names of the sweep's cells; none without a readable list."""
    try:
        return untrusted_files.read_json(folder / CELLS, list[FileName])
    except (FileNotFoundError, Damaged):
        return []
