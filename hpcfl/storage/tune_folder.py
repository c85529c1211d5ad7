"""The folder of a tuning: sweeps, and a small file for each step of each run.

Every process computes the same selection from these files.

* ``tune.json``: identity of the tuning
* ``search/``, ``final/`` and ``untuned/``: runs of the search, of the selected
  configurations and of the untuned ones; each is the folder of a sweep
* ``measured/``: short runs that measure the cost of methods whose runs cannot be
  continued
* ``results/``: a file for each run and step of the search
* ``chosen/``: an experiment file for each method, for ``hpcfl run``
* ``unchecked``: exists until the first rounds of a new tuning are compared with its
  budget
* ``tuned.csv``: a line for each method, written when the tuning has ended
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired

from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.errors import UserError
from hpcfl.experiment.experiment_file import flatten
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.run_folder import (
    CELLS,
    FINAL,
    JOBS,
    MEASURED,
    RUN,
    SEARCH,
    TUNE,
    UNTUNED,
    list_differences,
)

SWEEPS = SEARCH, FINAL, UNTUNED
RESULTS, CHOSEN = "results", "chosen"
TABLE = "tuned.csv"
# heading of the share of the budget that a method's search used
SPENT = "spent/budget"
UNCHECKED = "unchecked"
COST = "cost"  # step that measures the cost of a run


class Result(TypedDict):
    """Result of a step of a run.

    Attributes:
        rounds: planned number of rounds after the step.
        whole: number of rounds of the whole run that the budget allows.
        gradients: number of sample gradients in all steps so far, including scorings;
            the round in which a run diverged is not counted. With a hard cap only
            gradients of training are counted.
        score: primary metric on held-out samples, mean of the last tenth; None if
            missing.
        rank: value that orders scores, higher for better ones; None if missing.
        failure: reason why the run had to end, or None.
        scoring: number of sample gradients of scorings, with a hard cap.
        highest_cost: largest expected cost of the next round, with a hard cap.
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


def mark_checked(folder: Path) -> None:
    """Record that a tuning's first rounds fit its budget."""
    (folder / UNCHECKED).unlink()


def remove_unplayed(folder: Path) -> None:
    """Remove a tuning without runs, results and jobs, and its folder if empty."""
    if any((*folder.glob("*/*/"), *folder.glob(f"{RESULTS}/*"), *folder.glob(JOBS))):
        return
    for name in (*SWEEPS, MEASURED, RESULTS, CHOSEN):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (TUNE, UNCHECKED):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # the folder holds other files
        folder.rmdir()


def begin(folder: Path, tuning: dict[str, Any], unchecked: bool = False) -> None:
    """Create the folder of a tuning, or check that a folder belongs to it.

    A tuning that has at most measured rounds continues with another budget.

    Args:
        folder: folder of the tuning.
        tuning: identity of the tuning.
        unchecked: Whether a new tuning's first rounds are to be compared with its
            budget.

    Raises:
        UserError: The folder holds a run, a sweep or another tuning, or its file is
            damaged.
        RunFailure: The folder cannot be written.
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
                f"{path}: missing, so {results} may belong to another tuning; delete "
                f"{results} and repeat the command"
            ) from None
        _make_folders(folder)
        if unchecked:
            atomic.write(folder / UNCHECKED, b"")
        atomic.write(path, text.encode())
        return
    except Damaged as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it and repeat the command"
        ) from None
    old, new = flatten(there), flatten(json.loads(text))
    differences = list_differences(old, new)
    if differences:
        has_same_runs = old | {"tune.budget": 0} == new | {"tune.budget": 0}
        if not (has_same_runs and is_unchecked(folder)):
            raise UserError(
                f"{folder}: holds another tuning ({'; '.join(differences)}); choose "
                "another --out"
            )
        # Costs are computed again from the measured runs, with the new budget.
        for cost in (folder / RESULTS).glob("*.json"):
            cost.unlink()
        atomic.write(path, text.encode())
    _make_folders(folder)


def _make_folders(folder: Path) -> None:
    """Create missing folders of steps and selections. Raises RunFailure."""
    with atomic.explain_errors(folder):
        for name in (RESULTS, CHOSEN):
            (folder / name).mkdir(parents=True, exist_ok=True)


def read_result(folder: Path, cell: str, step: str) -> Result | None:
    """Return the result of a step of a run, or None before its end.

    Args:
        folder: folder of the tuning.
        cell: name of the run.
        step: name of the step.

    Raises:
        UserError: The file is damaged.
    """
    path = _make_path(folder, cell, step)
    try:
        return untrusted_files.read_json(path, Result)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise UserError(
            f"{path}: damaged ({error}); delete it and repeat the command, which computes it again"
        ) from None


def keep(folder: Path, cell: str, step: str, result: Result) -> None:
    """Write the result of a step of a run.

    Args:
        folder: folder of the tuning.
        cell: name of the run.
        step: name of the step.
        result: the result.

    Raises:
        RunFailure: The file cannot be written.
    """
    text = json.dumps(result, indent=1, allow_nan=False)
    atomic.write(_make_path(folder, cell, step), text.encode())


def _make_path(folder: Path, cell: str, step: str) -> Path:
    return folder / RESULTS / f"{cell},{step}.json"
