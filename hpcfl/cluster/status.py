"""Where the runs in a folder stand: ``hpcfl status``. It only looks, and never disturbs a run that writes."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from hpcfl.cluster import slurm
from hpcfl.cluster.slurm import Queued
from hpcfl.cluster.submission_folder import Submissions
from hpcfl.commands.experiments import SWEEP
from hpcfl.errors import UserError
from hpcfl.files import foreign
from hpcfl.files.atomic import Damaged
from hpcfl.report import summary
from hpcfl.report.progress import duration
from hpcfl.report.summary import Run
from hpcfl.report.text import literal
from hpcfl.storage import life, run_folder
from hpcfl.storage.life import Stage
from hpcfl.storage.results import Results

INTERVAL = 5.0  # seconds between two looks
UNDER_WAY = ("queued", "starting", "running")
# a run in its folder; else running
RUNNING = {Stage.EMPTY: "starting", Stage.CLAIMED: "starting", Stage.PREPARED: "starting"}
WIDE = 200  # columns where the output is no terminal


@dataclass(frozen=True)
class Status:
    """A cell: ``state`` is one of finished, running, starting, queued, failed, stopped, waiting;
    ``note`` says more.

    accuracy: the last one scored, in [0, 1], or what else counts; reached: the same as it is shown; left:
    seconds until it is finished, at its pace so far.
    """

    name: str
    state: str
    note: str = ""
    round: int = 0
    rounds: int | None = None
    accuracy: float | None = None
    left: float | None = None
    reached: str = ""


def look(folder: Path) -> list[Status]:
    """All cells of a sweep's folder, or the one run in it. Raises UserError where there is neither."""
    submissions = Submissions(folder)
    queue = slurm.jobs(submissions.jobs.values()) or {}
    return [_status(name, place, submissions, queue.get(submissions.jobs.get(name, "")))
            for name, place in _cells(folder, submissions)]


def show(folder: Path, watch: bool) -> None:
    """Print the cells; with ``watch`` again and again until none is under way."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    cells = look(folder)
    if not watch:
        console.print(_table(cells))
        return
    with Live(_table(cells), console=console, auto_refresh=False) as live:
        while any(cell.state in UNDER_WAY for cell in cells):
            time.sleep(INTERVAL)
            cells = look(folder)
            live.update(_table(cells), refresh=True)
    if not console.is_terminal:
        console.print()  # rich ends its last line on terminals only


def _cells(folder: Path, submissions: Submissions) -> Iterator[tuple[str, Path]]:
    """Names and folders: those of the sweep in its order, then others that were run here before."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if run_folder.is_run(folder):
        yield next(iter(submissions.jobs), folder.resolve().name), folder
        return
    planned = _planned(folder) or list(submissions.jobs)
    others = sorted(entry.name for entry in folder.iterdir()
                    if run_folder.is_run(entry) and not run_folder.is_aside(entry))
    if not planned and not others:
        raise UserError(f"{folder}: no run of hpcfl here")
    for name in dict.fromkeys([*planned, *others]):
        yield name, folder / name


def _planned(folder: Path) -> list[str]:
    try:
        return [name for name in foreign.read_json(folder / SWEEP, list[str]) if Path(name).name == name]
    except (FileNotFoundError, Damaged):
        return []


def _status(name: str, folder: Path, submissions: Submissions, queued: Queued | None) -> Status:
    run = _run(folder)
    state, note = _state(name, folder, run, submissions, queued)
    if run is None:
        return Status(name, state, note)
    found, rounds = run.summary, run.config["rounds"]
    pace, left = found.seconds_per_round, rounds - found.rounds
    number = found.last[run.score] if found.last else None
    return Status(name, state, note, found.rounds, rounds, number,
                  pace * left if pace and left and state == "running" else None,
                  "" if number is None else f"{run.measure.shown(number)} {run.measure.unit}".rstrip())


def _run(folder: Path) -> Run | None:
    try:
        return summary.load(folder)
    except UserError:
        return None


def _state(name: str, folder: Path, run: Run | None, submissions: Submissions,
           queued: Queued | None) -> tuple[str, str]:
    """What the folder says, and where it leaves that open the queue; and a note of why or how
    often requeued."""
    came = run.life if run else life.look(folder, None, Results())
    again = (f"requeued {queued.restarts} time{'s' if queued.restarts > 1 else ''}"
             if queued and queued.restarts else "")
    if came.finished:
        return "finished", ""
    if came.held:
        return RUNNING.get(came.stage, "running"), again
    if queued is not None and queued.alive:
        return _in_queue(queued, run, again)
    if failure := came.failure or submissions.failure(name):
        return "failed", failure
    if queued is not None and queued.state not in ("COMPLETED", "CANCELLED"):
        return "failed", f"{queued.state} is all that Slurm says; the log is in {submissions.folder}"
    return ("stopped", "the same command continues") if came.stage else ("waiting", "")


def _in_queue(queued: Queued, run: Run | None, again: str) -> tuple[str, str]:
    if queued.state == "RUNNING":
        return "running" if run else "starting", again
    return "queued", ", ".join(part for part in (again, queued.reason) if part and part != "None")


def _table(cells: list[Status]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for title, justify in (("cell", "left"), ("state", "left"), ("round", "right"), ("reached", "right"),
                           ("left", "right"), ("", "left")):
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for cell in cells:
        table.add_row(literal(cell.name), cell.state, f"{cell.round}/{cell.rounds}" if cell.rounds else "",
                      literal(cell.reached),
                      "" if cell.left is None else duration(cell.left), literal(cell.note))
    counts = Counter(cell.state for cell in cells)
    return Group(table, ", ".join(f"{count} {state}" for state, count in counts.items()))
