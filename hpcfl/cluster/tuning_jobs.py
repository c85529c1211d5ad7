"""The jobs of a tuning that are still to be played: an array for each rung, one for the
final runs, and one job that says what came out; each waits for the one before.

No job decides for another one: a task of a rung finds in the files of the rung before
whether its configuration goes on, and ends at once where it does not.
"""

from dataclasses import dataclass
from pathlib import Path

from hpcfl.commands import tune
from hpcfl.errors import RunFailure, UserError
from hpcfl.report import summary
from hpcfl.storage import tune_folder
from hpcfl.tuning import standing
from hpcfl.tuning.plan import Candidate, Cell, Plan

OUTCOME = "outcome"


@dataclass(frozen=True)
class Task:
    """A job.

    Attributes:
        name: Sets it apart from the tuning's other ones; part of files' names.
        stage: As ``hpcfl tune --stage`` takes it.
        cell: As ``--cell`` takes it; "" for what came out.
        place: Of what it plays, below the tuning's folder.
        method: Whose run it is, one of several where it is nobody's.
    """

    name: str
    stage: str
    cell: str
    place: str
    method: str


@dataclass(frozen=True)
class Stage:
    """The jobs that may run at the same time."""

    said: str
    tasks: list[Task]


def stages(tuning: Plan, folder: Path) -> list[Stage]:
    """What is to be played, in order. A stage may have no tasks left."""
    methods = tuning.section.methods
    count = max(len(tuning.rungs(method)) for method in methods)
    found = []
    for rung in range(count):
        tasks = [
            task
            for method in methods
            for task in _of_rung(tuning, folder, method, rung)
        ]
        found.append(Stage(f"rung {rung + 1} of {count}", tasks))
    finals = [task for method in methods for task in _final(tuning, folder, method)]
    found.append(Stage("final runs", finals))
    is_open = any(stage.tasks for stage in found)
    last = []
    if is_open or not tune.has_outcome(folder):
        last.append(Task(OUTCOME, OUTCOME, "", ".", methods[0]))
    found.append(Stage("what came out", last))
    return found


def _of_rung(tuning: Plan, folder: Path, method: str, rung: int) -> list[Task]:
    """The runs of a method that may have a part in a rung which they have not played."""
    if rung >= len(tuning.rungs(method)):
        return []
    candidates = _may_go_on(tuning, folder, method, rung)
    if rung == 0:
        candidates = [*candidates, tuning.untuned(method)]
    tasks = []
    for candidate in candidates:
        for seed in tuning.section.search_seeds:
            cell = Cell(candidate, seed).name
            if tune_folder.result(folder, cell, standing.step(rung)) is not None:
                continue
            place = f"{tune_folder.SEARCH}/{cell}"
            name = f"{cell},{standing.step(rung)}"
            tasks.append(Task(name, str(rung), cell, place, method))
    return tasks


def _may_go_on(tuning: Plan, folder: Path, method: str, rung: int) -> list[Candidate]:
    """Who goes on to a rung; every trial while nobody can know."""
    try:
        return standing.going_on(tuning, folder, method, rung)
    except RunFailure:
        return tuning.trials(method)


def _final(tuning: Plan, folder: Path, method: str) -> list[Task]:
    """The final runs of a method that are not complete."""
    cells = tune.cells_of(tuning, method)
    tasks = []
    for sweep in (tune_folder.FINAL, tune_folder.UNTUNED):
        for cell in cells[sweep]:
            place = f"{sweep}/{cell.name}"
            if not _is_complete(folder / place):
                tasks.append(Task(cell.name, "final", cell.name, place, method))
    return tasks


def _is_complete(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        return summary.load(folder).summary.finished
    except UserError:
        return False
