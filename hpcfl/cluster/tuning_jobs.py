"""The remaining jobs of a tuning: an array for each rung, one for the final runs, and
one job for the outcome.

Each array waits for the previous one. Jobs do not decide for each other: a task of a
rung reads the files of the previous rung, and ends at once if its configuration is not
continued.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hpcfl.cluster.submission_folder import OUTCOME
from hpcfl.commands import tune
from hpcfl.errors import RunFailure, UserError
from hpcfl.storage import run_folder
from hpcfl.trained import loading
from hpcfl.tuning.plan import Candidate, Cell, TuningPlan
from hpcfl.tuning.search_results import SearchResults, name_step


@dataclass(frozen=True)
class Task:
    """A job.

    Attributes:
        name: name of the job, unique in the tuning and part of file names.
        stage: value of ``hpcfl tune --stage``.
        cell: value of ``--cell``; "" for the outcome.
        place: folder of its run, below the folder of the tuning.
        method: method of its run; any method for the outcome.
    """

    name: str
    stage: str
    cell: str
    place: str
    method: str


@dataclass(frozen=True)
class TuningStage:
    """Jobs that may run at the same time.

    Attributes:
        title: title for messages.
        tasks: the jobs.
    """

    title: str
    tasks: list[Task]


def list_stages(tuning: TuningPlan, folder: Path) -> list[TuningStage]:
    """Return the remaining stages in order; a stage may have no remaining tasks."""
    methods = tuning.section.methods
    count = max(len(tuning.list_rungs(method)) for method in methods)
    of_searches = list(product(tuning.searches, methods))
    found = []
    for rung in range(count):
        tasks = [
            task
            for search, method in of_searches
            for task in _list_of_rung(SearchResults(search, folder), method, rung)
        ]
        found.append(TuningStage(f"rung {rung + 1} of {count}", tasks))
    finals = [
        task
        for search, method in of_searches
        for task in _list_finals(search, folder, method)
    ]
    found.append(TuningStage("final runs", finals))
    is_open = any(stage.tasks for stage in found)
    last = []
    if is_open or not tune.has_outcome(folder):
        last.append(
            Task(name=OUTCOME, stage=OUTCOME, cell="", place=".", method=methods[0])
        )
    found.append(TuningStage("outcome", last))
    return found


def _list_of_rung(search: SearchResults, method: str, rung: int) -> list[Task]:
    """Return the tasks of a method's runs that may belong to a rung and have not played
    it.
    """
    tuning = search.plan
    if rung >= len(tuning.list_rungs(method)):
        return []
    candidates = _list_possible(search, method, rung)
    if rung == 0:
        candidates = [*candidates, *tuning.list_references(method)]
    tasks = []
    for candidate in candidates:
        for seed in tuning.section.search_seeds:
            cell = Cell(candidate, seed)
            if search.read_result(cell, name_step(rung)) is not None:
                continue
            tasks.append(
                Task(
                    name=f"{cell.name},{name_step(rung)}",
                    stage=str(rung),
                    cell=cell.name,
                    place=f"{run_folder.SEARCH}/{cell.name}",
                    method=method,
                )
            )
    return tasks


def _list_possible(search: SearchResults, method: str, rung: int) -> list[Candidate]:
    """Return the candidates that continue in a rung; all trials if that is unknown."""
    try:
        return search.select_candidates(method, rung)
    except RunFailure:
        return search.plan.list_trials(method)


def _list_finals(tuning: TuningPlan, folder: Path, method: str) -> list[Task]:
    """Return the tasks of a method's incomplete final runs."""
    cells = tune.list_cells(tuning, method)
    tasks = []
    for sweep in (run_folder.FINAL, run_folder.UNTUNED):
        for cell in cells.get(sweep, []):
            place = f"{sweep}/{cell.name}"
            if not _is_complete(folder / place):
                tasks.append(
                    Task(
                        name=cell.name,
                        stage="final",
                        cell=cell.name,
                        place=place,
                        method=method,
                    )
                )
    return tasks


def _is_complete(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        return loading.load_run(folder).summary.finished
    except UserError:
        return False
