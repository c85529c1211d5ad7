"""Run an experiment file: a single run, or the cells of a sweep in sequence."""

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.commands.cells import refuse_conflicts
from hpcfl.commands.run import (
    OnRound,
    check_world,
    find_allowed_silence,
    require_same_settings,
    run,
)
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.data import datasets
from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.experiment import config, plugins, sweep
from hpcfl.experiment.config import Config
from hpcfl.files import atomic, output
from hpcfl.files.wording import list_first
from hpcfl.report.text import escape
from hpcfl.simulation import start_checks
from hpcfl.storage import manifest, results, run_folder
from hpcfl.storage.run_folder import RUN, TUNE


@dataclass(frozen=True)
class RunPlan:
    """The runs of an experiment file: a single run or the cells of a sweep.

    Attributes:
        folder: Folder of all results.
        cells: Configurations by name.
        is_sweep: Whether each cell has a subfolder with its name.
    """

    folder: Path
    cells: dict[str, Config]
    is_sweep: bool

    def get_folder(self, name: str) -> Path:
        """Return the folder of a cell's results."""
        return self.folder / name if self.is_sweep else self.folder

    def record(self) -> None:
        """Write the names of a sweep's cells into its folder, for commands that read it.

        Raises:
            UserError: If the folder holds a single run or a tuning.
            RunFailure: If the folder cannot be written.
        """
        if not self.is_sweep:
            return
        for name, content in ((RUN, "a single run"), (TUNE, "a tuning")):
            if (self.folder / name).exists():
                raise UserError(
                    f"{self.folder}: holds {content}, not a sweep; choose another --out or name"
                )
        run_folder.record_cells(self.folder, list(self.cells))


def make_plan(table: dict[str, Any], source: str, out: Path | None) -> RunPlan:
    """Plan the runs of an experiment.

    Args:
        table: Content of the experiment file.
        source: Name of the file for messages.
        out: Folder of the results; by default ``runs/NAME``.

    Raises:
        UserError: If the experiment is invalid.
    """
    cells = sweep.expand(table, source)
    is_sweep = "sweep" in table
    first, *_ = cells.values()
    folder = out or Path("runs") / table.get("name", first.name)
    atomic.check_folder(folder)
    if is_sweep:
        refuse_conflicts(cells)
    for cell in cells.values():
        datasets.find(cell.data.dataset)
    return RunPlan(folder, cells, is_sweep)


def run_file(
    file: Path,
    overrides: Iterable[str],
    out: Path | None,
    fresh: bool,
    communicator: Communicator,
) -> None:
    """Run an experiment file. Collective.

    Args:
        file: Experiment file.
        overrides: Assignments ``section.key=value`` that override keys of the file.
        out: Folder of the results; by default ``runs/NAME``.
        fresh: Whether to start over if the folder has results.
        communicator: Communicator of all ranks.

    Raises:
        UserError, RunFailure, Interrupted: As for ``run_plan``.
    """

    def read() -> RunPlan:
        return make_plan(config.read(file, overrides), str(file), out)

    plan = agree_on_plan(read, fresh, communicator)
    run_plan(plan, fresh, communicator)


def agree_on_plan(
    read: Callable[[], RunPlan], fresh: bool, communicator: Communicator
) -> RunPlan:
    """Return the plan of all ranks after checking that it is the same on each.
    Collective.

    Args:
        read: Function that makes the plan on each rank.
        fresh: Whether to start over if the folder has results.
        communicator: Communicator of all ranks.

    Raises:
        UserError: If the experiment is invalid or ranks differ; on all ranks.
    """
    with agreed(communicator):
        check_world(communicator)
        plan = read()
        communicator.watch(find_allowed_silence(plan.cells.values()))
    cells = {}
    for name, cell in plan.cells.items():
        cells[f"{name}: " if plan.is_sweep else ""] = cell
    require_same_settings(communicator, cells, plan.folder, fresh)
    with agreed(communicator):
        if communicator.is_server:
            plan.record()
    return plan


def run_plan(
    plan: RunPlan,
    fresh: bool,
    communicator: Communicator,
    on_round: OnRound | None = None,
) -> None:
    """Run the cells of a plan in sequence. Collective.

    Rank 0 prints progress and, at the end, the results. If a cell of a sweep fails, the
    remaining cells still run.

    Args:
        plan: Plan of the runs.
        fresh: Whether to start over if the folder has results.
        communicator: Communicator of all ranks.
        on_round: Function that rank 0 calls after each round.

    Raises:
        UserError: If the experiment is invalid; on all ranks.
        RunFailure: If a run fails, for a sweep after all cells; on all ranks.
        Interrupted: If a signal stops the run; on all ranks.
    """
    failures: dict[str, str] = {}
    played = False
    for name, cell in plan.cells.items():
        folder = plan.get_folder(name)
        try:
            has_played = run(cell, folder, communicator, fresh=fresh, on_round=on_round)
        except Interrupted as error:
            cells = list(plan.cells)
            later = cells[cells.index(name) + error.begun :]
            # With --fresh the command would start over the earlier cells again.
            error.begun |= played
            _note_old_cells(plan, later if fresh and error.begun else [], communicator)
            raise
        except (RunFailure, UserError) as error:
            if not plan.is_sweep:
                raise
            # The error itself would keep the cell's memory alive by its traceback.
            failures[name] = "; ".join(map(str, error.args))
            if communicator.is_server:
                output.say(f"{name}: failed: {escape(failures[name])}")
            continue
        played |= has_played
        if not has_played and communicator.is_server:
            report_complete(cell, folder)
    if communicator.is_server and plan.is_sweep:
        _note_earlier_cells(plan)
    if communicator.is_server and len(failures) < len(plan.cells):
        _show_results(plan, played)
    if failures:
        name, first = next(iter(failures.items()))
        raise RunFailure(
            f"{len(failures)} of {len(plan.cells)} cells failed, first {name}: {first}"
        )


def report_complete(experiment: Config, folder: Path) -> None:
    """Print that a run in ``folder`` is complete, and which of its files are intact."""
    _, completed = results.examine(folder, experiment.fingerprint())
    rounds = max([experiment.rounds, *completed])
    more = ""
    if rounds > experiment.rounds:
        more = f", for the {rounds} rounds of a later command"
    newest = manifest.find_latest(folder / run_folder.CHECKPOINTS, verified=True)
    checked = "metrics and checkpoints are intact"
    if newest is None:
        checked = "metrics are intact, no checkpoint can be read"
    output.say(
        f"{experiment.name}: complete in {folder}{more}; --fresh starts over ({checked})"
    )
    own_files = plugins.hash_own_files(experiment.resolved())
    meta = newest.meta if newest else {}
    for name in start_checks.list_changed_inputs(own_files, meta):
        output.say(f"note: {name} has changed since this run, which is not repeated")


def _note_old_cells(
    plan: RunPlan, later: list[str], communicator: Communicator
) -> None:
    """Print a note on cells whose results ``--fresh`` has not moved aside, on rank 0.

    Args:
        plan: Plan of the sweep.
        later: Names of the cells that have not started over.
        communicator: Communicator of all ranks.
    """
    old = [name for name in later if os.path.exists(plan.get_folder(name) / RUN)]
    if old and communicator.is_server:
        output.say(
            f"note: without --fresh these cells keep their earlier results: "
            f"{escape(list_first(old))}; to start them over, delete their folders in "
            f"{plan.folder}"
        )


def _note_earlier_cells(plan: RunPlan) -> None:
    """Print a note if the folder has runs that are no longer part of the sweep."""
    there = run_folder.list_runs(plan.folder)
    earlier = [name for name in there if name not in plan.cells]
    if earlier:
        output.say(
            f"note: {plan.folder} also has {len(earlier)} runs that are no longer in this "
            f"sweep, such as {escape(earlier[0])}; its tables include them"
        )


def _show_results(plan: RunPlan, has_played: bool) -> None:
    """Print the results, on rank 0.

    The results are saved already, so a failing report is a note and not a failure of the
    run. A quiet run prints and draws nothing. The other ranks do not wait for the
    report.
    """
    try:
        if not output.is_quiet():
            from hpcfl.report import run_end

            run_end.show_results(plan.folder, has_played)
    except Exception as error:
        output.say(
            f"note: the results are complete, but their report failed ({type(error).__name__}: "
            f"{escape(error)}); repeat the command to make it again, or type hpcfl show "
            f"{shlex.quote(str(plan.folder))}"
        )
    output.keep_note(plan.folder)
