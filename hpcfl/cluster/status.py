"""``hpcfl status``: status of the runs in a folder, read without disturbing writers."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from hpcfl.cluster import slurm
from hpcfl.cluster.slurm import Queued
from hpcfl.cluster.submission_folder import OUTCOME, SubmittedJobs
from hpcfl.errors import UserError
from hpcfl.files import output
from hpcfl.report.text import format_duration, literal, make_console
from hpcfl.storage import run_folder, run_status, tune_folder
from hpcfl.storage.results import Results
from hpcfl.storage.run_status import RunStage
from hpcfl.trained import loading
from hpcfl.trained.run import Run

INTERVAL = 5.0  # seconds between two updates
UNDER_WAY = ("queued", "starting", "running", "unknown")
STARTING = (
    RunStage.EMPTY,
    RunStage.CLAIMED,
    RunStage.PREPARED,
)  # stages of an active run before round 1
WIDE = 200  # columns if the output is not a terminal
MOST_ROWS = 1000  # largest number of cells in a table


@dataclass(frozen=True)
class Status:
    """Status of a sweep's cell or of a single run.

    Attributes:
        name: name of the cell.
        state: finished, running, starting, queued, failed, stopped, waiting or unknown.
        note: details of the state.
        round: last round played.
        rounds: requested number of rounds, or None.
        saved: number of rounds in the newest checkpoint, if the run is neither finished
            nor active.
        left: seconds until the run is finished at its pace so far, or None.
        reached: last value of the primary metric, formatted.
        command: command that continues a stopped run, if a user typed it.
    """

    name: str
    state: str
    note: str = ""
    round: int = 0
    rounds: int | None = None
    saved: int | None = None
    left: float | None = None
    reached: str = ""
    command: str = ""


def list_statuses(folder: Path) -> list[Status]:
    """Return the status of all cells of the sweep in a folder, or of its single run.

    A tuning without its table also has the failure of its last job.

    Raises UserError if the folder has neither.
    """
    submissions = SubmittedJobs(folder)
    queue = slurm.find_jobs(submissions.jobs.values())
    statuses = [
        _find_status(name, place, submissions, queue)
        for name, place in _list_cells(folder, submissions)
    ]
    has_table = (folder / tune_folder.TABLE).exists()
    is_open = run_folder.is_tuning(folder) and not has_table
    if is_open and (failure := submissions.read_failure(OUTCOME)):
        statuses.append(Status(OUTCOME, "failed", failure))
    return statuses


def show(folder: Path, watch: bool) -> None:
    """Print the status of all cells.

    Args:
        folder: folder of a sweep, tuning or run.
        watch: Whether to update the output until no cell is active.

    Raises:
        UserError: The folder contains no run.
    """
    console = make_console(WIDE)
    cells = list_statuses(folder)
    if not watch:
        console.print(_make_table(cells))
        return
    with Live(_make_table(cells), console=console, auto_refresh=False) as live:
        while (
            any(cell.state in UNDER_WAY for cell in cells) and not output.find_failure()
        ):
            time.sleep(INTERVAL)
            cells = list_statuses(folder)
            live.update(_make_table(cells), refresh=True)
    if not console.is_terminal:
        console.print()  # rich ends the last line only on terminals


def _list_cells(folder: Path, submissions: SubmittedJobs) -> Iterator[tuple[str, Path]]:
    """Yield names and folders of the sweep's cells in its order, then of other runs.

    Raises UserError if there are none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if run_folder.is_run(folder):
        yield next(iter(submissions.jobs), folder.resolve().name), folder
        return
    if run_folder.is_tuning(folder):
        for sweep in tune_folder.SWEEPS:
            yield from _list_cells_of(folder / sweep, [])
        return
    yield from _list_cells_of(folder, list(submissions.jobs))


def _list_cells_of(folder: Path, submitted: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield names and folders of a sweep's cells.

    Args:
        folder: folder of the sweep.
        submitted: names of the cells if the folder has no list.

    Raises:
        UserError: The folder contains no run.
    """
    planned = run_folder.read_cells(folder) or submitted
    others = run_folder.list_runs(folder)
    if not planned and not others:
        raise UserError(f"{folder}: contains no run of hpcfl")
    for name in dict.fromkeys([*planned, *others]):
        yield name, folder / name


def _find_job(name: str, submissions: SubmittedJobs, queue: dict[str, Queued]) -> str:
    """Return the name of a cell's job, or "".

    In a tuning it is the cell's first part that has not ended, else its last part.
    """
    parts = [job for job in submissions.jobs if job.startswith(f"{name},rung=")]
    for job in parts:
        queued = queue.get(submissions.jobs[job])
        if queued is not None and queued.is_alive:
            return job
    if parts:
        return parts[-1]
    return name if name in submissions.jobs else ""


def _find_status(
    name: str,
    folder: Path,
    submissions: SubmittedJobs,
    queue: dict[str, Queued] | None,
) -> Status:
    """Return the status of a run.

    Args:
        name: name of the cell.
        folder: folder of the run.
        submissions: submitted jobs.
        queue: jobs in Slurm's queue by id; None if Slurm does not answer.
    """
    in_queue = queue or {}
    job = _find_job(name, submissions, in_queue)
    if not job and not folder.is_dir():
        return Status(name, "waiting")
    run = _load_run(folder)
    queued = in_queue.get(submissions.jobs.get(job, ""))
    state, note = _find_state(
        folder, run, job=job, submissions=submissions, queued=queued
    )
    if queue is None and job and state in ("stopped", "waiting"):
        state, note = "unknown", "squeue fails, so its job may be in the queue"
    if run is None:
        return Status(name, state, note)
    so_far, rounds = run.summary, run.config["rounds"]
    pace, left = so_far.seconds_per_round, rounds - so_far.rounds
    number = so_far.last[run.score] if so_far.last else None
    is_idle = not (run.status.finished or run.status.is_locked)
    reached = ""
    if number is not None:
        reached = f"{run.measure.format(number)} {run.measure.unit}".rstrip()
    return Status(
        name,
        state,
        note,
        round=so_far.rounds,
        rounds=rounds,
        saved=run.status.done if is_idle else None,
        left=pace * left if pace and left and state == "running" else None,
        reached=reached,
        command=_find_command(run) if state == "stopped" and not job else "",
    )


def _find_command(run: Run) -> str:
    """Return the shell command that continues a run; "" for other programs.

    It is the command that last started the run, without ``--fresh``.
    """
    program, *words = run.results.header.get("command") or [""]
    if Path(program).name != "hpcfl":
        return ""
    ranks = run.results.header.get("ranks", 1)
    words = [word for word in words if word != "--fresh"]
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    return shlex.join([*launcher, "hpcfl", *words])


def _load_run(folder: Path) -> Run | None:
    """Return the run in a folder; None if it is missing or unreadable."""
    try:
        return loading.load_run(folder)
    except UserError:
        return None


def _find_state(
    folder: Path,
    run: Run | None,
    *,
    job: str,
    submissions: SubmittedJobs,
    queued: Queued | None,
) -> tuple[str, str]:
    """Return a cell's state and note, first from its folder, then from the queue."""
    run_state = run.status if run else run_status.look(folder, None, Results())
    requeues = ""
    if queued is not None and queued.restarts:
        plural = "s" if queued.restarts > 1 else ""
        requeues = f"requeued {queued.restarts} time{plural}"
    if run_state.finished:
        return "finished", ""
    if run_state.is_locked:
        return "starting" if run_state.stage in STARTING else "running", requeues
    if queued is not None and queued.is_alive:
        return _describe_queued(queued, run, requeues)
    if failure := run_state.failure or submissions.read_failure(job):
        return "failed", failure
    if queued is not None and queued.state not in ("COMPLETED", "CANCELLED"):
        return (
            "failed",
            f"Slurm reports only {queued.state}; see the log in {submissions.folder}",
        )
    if run_state.stage:
        return "stopped", "the same command continues"
    return "waiting", ""


def _describe_queued(queued: Queued, run: Run | None, requeues: str) -> tuple[str, str]:
    """Return state and note of a cell whose job is pending, or running without locking
    the folder.
    """
    if queued.state == "RUNNING":
        return "running" if run else "starting", requeues
    notes = [requeues, queued.reason]
    return "queued", ", ".join(note for note in notes if note not in ("", "None"))


def _describe_round(cell: Status) -> str:
    """Return a cell's round, and its saved one if a continued run begins with another."""
    if not cell.rounds:
        return ""
    text = f"{cell.round}/{cell.rounds}"
    if cell.saved in (None, cell.round):
        return text
    return f"{text}, saved {cell.saved}"


def _make_table(cells: list[Status]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for title in ("cell", "state", "round", "reached", "left", ""):
        table.add_column(title, overflow="fold")
    for column in table.columns[2:5]:
        column.justify = "right"
    for cell in cells[:MOST_ROWS]:
        table.add_row(
            literal(cell.name),
            cell.state,
            _describe_round(cell),
            literal(cell.reached),
            "" if cell.left is None else format_duration(cell.left),
            literal(cell.note),
        )
    counts = Counter(cell.state for cell in cells)
    more = [f"… and {len(cells) - MOST_ROWS:,} more"] if len(cells) > MOST_ROWS else []
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    commands = dict.fromkeys(cell.command for cell in cells if cell.command)
    advice = [
        literal(f"continue, in the folder where it was begun: {command}")
        for command in commands
    ]
    return Group(table, *more, total, *advice)
