"""The remaining jobs of a tuning: an array for each rung, one for the final runs, and
one job for the outcome.

Each array waits for the one before. No job decides for another: a task of a rung reads
the files of the rung before. It ends at once if its configuration does not go on.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hpcfl.commands import tune
from hpcfl.errors import RunFailure, UserError
from hpcfl.storage import run_folder, tune_folder
from hpcfl.trained import loading
from hpcfl.tuning import search_results
from hpcfl.tuning.plan import Candidate, Cell, Plan

OUTCOME = "outcome"


@dataclass(frozen=True)
class Task:
    """A job.

    Attributes:
        name: Unique in the tuning; part of files' names.
        stage: The value of ``hpcfl tune --stage``.
        cell: The value of ``--cell``; "" for the outcome.
        place: The folder of its run, below the tuning's folder.
        method: The method of its run; any method for the outcome.
    """

    name: str
    stage: str
    cell: str
    place: str
    method: str


@dataclass(frozen=True)
class Stage:
    """The jobs that may run at the same time."""

    title: str
    tasks: list[Task]


def stages(tuning: Plan, folder: Path) -> list[Stage]:
    """Return the remaining stages in order. A stage may have no tasks left."""
    methods = tuning.section.methods
    count = max(len(tuning.rungs(method)) for method in methods)
    of_searches = list(product(tuning.searches, methods))
    found = []
    for rung in range(count):
        tasks = [
            task
            for search, method in of_searches
            for task in _of_rung(search, folder, method, rung)
        ]
        found.append(Stage(f"rung {rung + 1} of {count}", tasks))
    finals = [
        task
        for search, method in of_searches
        for task in _final(search, folder, method)
    ]
    found.append(Stage("final runs", finals))
    is_open = any(stage.tasks for stage in found)
    last = []
    if is_open or not tune.has_outcome(folder):
        last.append(Task(OUTCOME, OUTCOME, "", ".", methods[0]))
    found.append(Stage("what came out", last))
    return found


def _of_rung(tuning: Plan, folder: Path, method: str, rung: int) -> list[Task]:
    """Return the tasks of a method's runs that may have a part in a rung and have not
    played it.
    """
    if rung >= len(tuning.rungs(method)):
        return []
    candidates = _may_go_on(tuning, folder, method, rung)
    if rung == 0:
        candidates = [*candidates, *tuning.references(method)]
    tasks = []
    for candidate in candidates:
        for seed in tuning.section.search_seeds:
            cell = Cell(candidate, seed).name
            if (
                tune_folder.result(folder, cell, search_results.name_step(rung))
                is not None
            ):
                continue
            place = f"{run_folder.SEARCH}/{cell}"
            name = f"{cell},{search_results.name_step(rung)}"
            tasks.append(Task(name, str(rung), cell, place, method))
    return tasks


def _may_go_on(tuning: Plan, folder: Path, method: str, rung: int) -> list[Candidate]:
    """Return the candidates that go on to a rung; every trial while that is unknown."""
    try:
        return search_results.select_candidates(tuning, folder, method, rung)
    except RunFailure:
        return tuning.trials(method)


def _final(tuning: Plan, folder: Path, method: str) -> list[Task]:
    """Return the tasks of a method's incomplete final runs."""
    cells = tune.cells_of(tuning, method)
    tasks = []
    for sweep in (run_folder.FINAL, run_folder.UNTUNED):
        for cell in cells.get(sweep, []):
            place = f"{sweep}/{cell.name}"
            if not _is_complete(folder / place):
                tasks.append(Task(cell.name, "final", cell.name, place, method))
    return tasks


def _is_complete(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        return loading.load_run(folder).summary.finished
    except UserError:
        return False
