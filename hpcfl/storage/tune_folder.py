"""The folder of a tuning: sweeps below it, and a small file for each step of each run,
from which every process works out the same choice.

* ``tune.json``: which tuning it is
* ``search/``, ``final/`` and ``untuned/``: the runs of the search, those of the chosen
  configurations, and those of the untuned ones; each is a sweep's folder
* ``measured/``: short runs that told what a run costs, of methods whose runs cannot go on
* ``results/``: a file for each run and step of the search
* ``chosen/``: a file for each method that ``hpcfl run`` takes
* ``unchecked``: there until the first rounds of a new tuning keep its budget
* ``tuned.csv``: a line for each method, when the tuning has ended
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.errors import UserError
from hpcfl.files import atomic, foreign
from hpcfl.files.atomic import Damaged
from hpcfl.storage.run_folder import CELLS, RUN

TUNE = "tune.json"
SEARCH, FINAL, UNTUNED = "search", "final", "untuned"
SWEEPS = SEARCH, FINAL, UNTUNED
MEASURED, RESULTS, CHOSEN = "measured", "results", "chosen"
TABLE = "tuned.csv"  # a line for each method when the tuning has ended
UNCHECKED = "unchecked"  # a file of a new tuning, until its budget is known to last
COST = "cost"  # the step that tells what a run costs


class Result(TypedDict):
    """What a step of a run came to.

    rounds: that the run was to have then. whole: those of the whole run, which the
    budget allows.
    gradients: of samples that all steps so far took, their scorings included; of the
    round in which a run diverged they are not known.
    score: the number that counts, on held-out samples at the tail; None for none.
    rank: a value to order scores by, higher for a better one.
    failure: why the run had to end, None if it did not.
    """

    rounds: NonNegativeInt
    whole: PositiveInt
    gradients: NonNegativeInt
    score: float | None
    rank: float | None
    failure: str | None


def is_tuning(folder: Path) -> bool:
    """Whether a folder is that of a tuning."""
    return (folder / TUNE).is_file()


def leaves_out(folder: Path, run: Path) -> bool:
    """Whether a run below ``folder`` is none of the results of a tuning that it lies
    in: what was tried, and what is compared with it.

    Who names such a sweep itself means it.
    """
    inside = run.relative_to(folder).parts
    for depth, name in enumerate(inside):
        tuning = folder.joinpath(*inside[:depth])
        if name in (SEARCH, UNTUNED, MEASURED) and is_tuning(tuning):
            return True
    return False


def is_unchecked(folder: Path) -> bool:
    """Whether a new tuning's first rounds are not yet compared with its budget, and no
    rung has been played.
    """
    rungs = (folder / RESULTS).glob("*,rung=*.json")
    return (folder / UNCHECKED).exists() and not any(rungs)


def check_off(folder: Path) -> None:
    """Note that a tuning's first rounds keep its budget."""
    (folder / UNCHECKED).unlink()


def remove(folder: Path) -> None:
    """Remove an unchecked tuning, which has first rounds only, and an empty folder."""
    for name in (*SWEEPS, MEASURED, RESULTS, CHOSEN):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / TUNE).unlink()
    check_off(folder)
    with suppress(OSError):  # it holds something else
        folder.rmdir()


def begin(folder: Path, tuning: dict[str, Any], unchecked: bool = False) -> None:
    """Make the folder that of this tuning, or find that it is.

    unchecked: whether a new tuning's first rounds are to be compared with its budget.

    Raises UserError if a run, a sweep or another tuning has it, or its file is damaged,
    RunFailure if it cannot be written.
    """
    path = folder / TUNE
    text = json.dumps(tuning, indent=1, sort_keys=True)
    try:
        there = foreign.read_json(path, dict[str, Any])
    except FileNotFoundError:
        if (folder / RUN).exists() or (folder / CELLS).exists():
            raise UserError(
                f"{folder}: holds a run or a sweep, not a tuning; choose another --out "
                "or name"
            ) from None
        results = folder / RESULTS
        if any(results.glob("*.json")):
            raise UserError(
                f"{path}: missing, so that {results} may be of another tuning; delete "
                f"{results}, and the same command goes on"
            ) from None
        _make_folders(folder)
        if unchecked:
            atomic.write(folder / UNCHECKED, b"")
        atomic.write(path, text.encode())
        return
    except Damaged as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it, and the same command goes on"
        ) from None
    if there != json.loads(text):
        differing = sorted(
            key for key in {*there, *tuning} if there.get(key) != tuning.get(key)
        )
        raise UserError(
            f"{folder}: holds another tuning, which differs in {', '.join(differing)}; "
            "choose another --out"
        )
    _make_folders(folder)


def _make_folders(folder: Path) -> None:
    """Make the folders of steps and choices where they are missing. Raises RunFailure."""
    with atomic.explained(folder):
        for name in (RESULTS, CHOSEN):
            (folder / name).mkdir(parents=True, exist_ok=True)


def result(folder: Path, cell: str, step: str) -> Result | None:
    """What a step of a run came to; None where it has not ended. Raises UserError where
    its file is damaged.
    """
    path = _path(folder, cell, step)
    try:
        return foreign.read_json(path, Result)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it, and the same command makes it again"
        ) from None


def keep(folder: Path, cell: str, step: str, result: Result) -> None:
    """Write what a step of a run came to. Raises RunFailure."""
    text = json.dumps(result, indent=1, allow_nan=False)
    atomic.write(_path(folder, cell, step), text.encode())


def _path(folder: Path, cell: str, step: str) -> Path:
    return folder / RESULTS / f"{cell},{step}.json"
