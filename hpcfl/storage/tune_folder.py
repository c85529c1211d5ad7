"""The folder of a tuning: sweeps, and a small file for each step of each run.

Every process computes the same choice from these files.

* ``tune.json``: the identity of the tuning
* ``search/``, ``final/`` and ``untuned/``: the runs of the search, of the chosen
  configurations and of the untuned ones; each is a sweep's folder
* ``measured/``: short runs that measure the cost of methods whose runs cannot go on
* ``results/``: a file for each run and step of the search
* ``chosen/``: a file for each method that ``hpcfl run`` takes
* ``unchecked``: exists until the first rounds of a new tuning keep its budget
* ``tuned.csv``: a line for each method, when the tuning has ended
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired

from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.run_folder import CELLS, FINAL, MEASURED, RUN, SEARCH, TUNE, UNTUNED

SWEEPS = SEARCH, FINAL, UNTUNED
RESULTS, CHOSEN = "results", "chosen"
TABLE = "tuned.csv"  # a line for each method when the tuning has ended
# the heading of the share of the budget that a method's searches took
SPENT = "spent/budget"
UNCHECKED = "unchecked"  # a file of a new tuning, until its budget is known to suffice
COST = "cost"  # the step that measures the cost of a run


class Result(TypedDict):
    """The result of a step of a run.

    rounds: that the run was to have then. whole: the rounds of the whole run, which the
    budget allows. gradients: the sample gradients of all steps so far, scorings
    included; the round in which a run diverged is not counted. score: the primary
    metric on held-out samples at the tail; None if missing. rank: a value to order
    scores by, higher for a better one. failure: why the run had to end, None if it did
    not. With a hard cap ``gradients`` are those of training alone; scoring: those of
    scorings. highest_cost: the most that the next round is expected to cost.
    """

    rounds: NonNegativeInt
    whole: PositiveInt
    gradients: NonNegativeInt
    score: float | None
    rank: float | None
    failure: str | None
    scoring: NotRequired[NonNegativeInt]
    highest_cost: NotRequired[PositiveInt]


def is_unchecked(folder: Path) -> bool:
    """Return whether a new tuning's first rounds are not yet compared with its budget.

    The result is False as soon as a rung was played.
    """
    rungs = (folder / RESULTS).glob("*,rung=*.json")
    return (folder / UNCHECKED).exists() and not any(rungs)


def check_off(folder: Path) -> None:
    """Record that a tuning's first rounds keep its budget."""
    (folder / UNCHECKED).unlink()


def remove(folder: Path) -> None:
    """Remove an unchecked tuning, which has first rounds only, and its folder if empty."""
    for name in (*SWEEPS, MEASURED, RESULTS, CHOSEN):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / TUNE).unlink()
    check_off(folder)
    with suppress(OSError):  # it holds something else
        folder.rmdir()


def begin(folder: Path, tuning: dict[str, Any], unchecked: bool = False) -> None:
    """Make the folder that of this tuning, or check that it is.

    unchecked: whether a new tuning's first rounds are to be compared with its budget.

    Raises UserError if the folder holds a run, a sweep or another tuning, or its file
    is
    damaged; RunFailure if it cannot be written.
    """
    path = folder / TUNE
    text = json.dumps(tuning, indent=1, sort_keys=True)
    try:
        there = untrusted_files.read_json(path, dict[str, Any])
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
    """Make the missing folders of steps and choices. Raises RunFailure."""
    with atomic.explained(folder):
        for name in (RESULTS, CHOSEN):
            (folder / name).mkdir(parents=True, exist_ok=True)


def read_result(folder: Path, cell: str, step: str) -> Result | None:
    """Return the result of a step of a run, or None before its end.

    Raises UserError if its file is damaged.
    """
    path = _make_path(folder, cell, step)
    try:
        return untrusted_files.read_json(path, Result)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it, and the same command makes it again"
        ) from None


def keep(folder: Path, cell: str, step: str, result: Result) -> None:
    """Write the result of a step of a run. Raises RunFailure."""
    text = json.dumps(result, indent=1, allow_nan=False)
    atomic.write(_make_path(folder, cell, step), text.encode())


def _make_path(folder: Path, cell: str, step: str) -> Path:
    return folder / RESULTS / f"{cell},{step}.json"
