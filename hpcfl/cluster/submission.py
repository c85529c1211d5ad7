"""Sending an experiment file to a cluster through submitit: one job, or an array with one task for each
cell of a sweep.

What a job needs lies in ``OUT/jobs`` (``submission_folder``), with its logs; nothing of it depends on the
experiment file any more, which may be edited while jobs wait.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

# the function that submitit itself makes its scripts with
from submitit.slurm.slurm import _make_sbatch_string

from hpcfl.cluster import batch, forecast, profile, slurm
from hpcfl.cluster.profile import Profile
from hpcfl.cluster.submission_folder import Submissions
from hpcfl.cluster.supervisor import Supervisor
from hpcfl.commands import experiments
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import config
from hpcfl.experiment.config import Config
from hpcfl.files import atomic
from hpcfl.storage import run_folder

UNLIMITED = 10**6  # submitit's own limit on requeues; ours counts those without progress


@dataclass(frozen=True)
class Work:
    """A cell that is to run: its name, what the job calls, and the texts that go beside it
    into ``OUT/jobs``."""

    name: str
    config: Config
    supervisor: Supervisor
    files: dict[Path, str]


def submit(file: Path, overrides: Iterable[str], profile_name: str, out: Path | None,
           dry_run: bool) -> list[str]:
    """Submit what is not finished and not in the queue; lines that say what was done. Raises
    UserError, RunFailure."""
    wanted = profile.load(profile_name)
    plan = experiments.make_plan(config.read(file, overrides), str(file), out)
    folder = plan.folder.resolve()
    batch.check_folder(folder)
    submissions = Submissions(folder)
    open_cells, refused = _open(plan, folder)
    _check_threads(wanted, open_cells)
    queued = {} if dry_run else _in_queue(submissions)
    work = [_work(wanted, submissions, folder / cell.folder, cell) for cell in open_cells
            if cell.name not in queued]
    complete = len(plan.cells) - len(open_cells) - len(refused)
    lines = [f"{complete} of {len(plan.cells)} complete"] if complete else []
    lines += [f"{name}: refused, {error}" for name, error in refused.items()]
    lines += [f"{name}: in the queue as job {job}" for name, job in queued.items()]
    if dry_run and work:
        forecast.show(work[0].config, wanted.ranks)
        lines.append(script(wanted, work, submissions))
    if dry_run or not work:
        return lines
    plan.record()
    with atomic.explained(submissions.folder):
        submissions.folder.mkdir(parents=True, exist_ok=True)
    for path, text in [item for one in work for item in one.files.items()]:
        atomic.write(path, text.encode())
    return [*lines, *_send(wanted, work, submissions)]


def _open(plan: experiments.Plan, folder: Path) -> tuple[list[experiments.PlannedCell], dict[str, UserError]]:
    """The cells that are not complete and can be run where they are to, and why others cannot. Raises
    UserError for a single run or if no cell is left."""
    open_cells, refused = [], dict[str, UserError]()
    for cell in plan.cells:
        try:
            if not run_folder.examine(folder / cell.folder, cell.config, fresh=False):
                open_cells.append(cell)
        except UserError as error:
            refused[cell.name] = error
    if len(refused) == len(plan.cells):
        raise next(iter(refused.values()))
    return open_cells, refused


def script(wanted: Profile, work: list[Work], submissions: Submissions) -> str:
    """The batch script as submitit will send it; without Slurm the command that starts the ranks."""
    if wanted.cluster != "slurm":
        return shlex.join(work[0].supervisor.command)
    many: dict[str, Any] = {"map_count": len(work)} if len(work) > 1 else {}
    command = f"{_python()} -u -m submitit.core._submit {shlex.quote(str(submissions.folder))}"
    return _make_sbatch_string(command, submissions.folder, **_parameters(wanted, submissions.name), **many)


def _work(wanted: Profile, submissions: Submissions, out: Path, cell: experiments.PlannedCell) -> Work:
    frozen, again = submissions.frozen(cell.name), submissions.script(cell.name)
    command = [*batch.launcher(wanted), *batch.experiment(sys.executable, frozen, out)]
    supervisor = Supervisor(command, str(out), str(submissions.record(cell.name)), wanted.warning,
                            wanted.max_requeues, [str(again)])
    chosen = batch.options(wanted, cell.config.name) | {"output": str(submissions.folder / "%j.log")}
    text = batch.script(chosen, wanted.setup, batch.supervised(sys.executable, supervisor))
    return Work(cell.name, cell.config, supervisor,
                {frozen: json.dumps(cell.config.resolved(), indent=1), again: text})


def _parameters(wanted: Profile, name: str) -> dict[str, Any]:
    """submitit's parameters. It spells options with '_' and sets some itself; ours replace them."""
    chosen = {key.replace("-", "_"): value for key, value in batch.options(wanted, name).items()}
    return {"additional_parameters": chosen, "setup": wanted.setup or None, "use_srun": False,
            "stderr_to_stdout": True, "array_parallelism": wanted.at_once}


def _python() -> str:
    """``exec``, because Slurm sends its warning to the script's own process."""
    return f"exec {shlex.quote(sys.executable)}"


def _send(wanted: Profile, work: list[Work], submissions: Submissions) -> list[str]:
    if wanted.cluster != "slurm":
        return [_run_here(wanted, one, submissions) for one in work]
    executor = submitit.SlurmExecutor(submissions.folder, max_num_timeout=UNLIMITED, python=_python())
    executor.update_parameters(**_parameters(wanted, submissions.name))
    try:
        with executor.batch():
            jobs = [executor.submit(one.supervisor) for one in work]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise RunFailure(f"Slurm did not take the job: {' '.join(str(error).split())}") from error
    ids = {one.name: job.job_id for one, job in zip(work, jobs, strict=True)}
    submissions.add(ids)
    return [*(f"{name}: job {job}" for name, job in ids.items()),
            f"follow with: hpcfl status {shlex.quote(str(submissions.folder.parent))} --watch"]


def _run_here(wanted: Profile, one: Work, submissions: Submissions) -> str:
    """Without Slurm cells run one after the other, and the command waits for each. Raises Interrupted."""
    try:
        if wanted.cluster == "debug":
            experiments.run_one(one.config, Path(one.supervisor.folder), False, OneProcess())
        else:
            executor = submitit.LocalExecutor(submissions.folder)
            executor.update_parameters(timeout_min=max(1, wanted.seconds // 60))
            executor.submit(one.supervisor).result()
    except (UserError, RunFailure) as error:
        return f"{one.name}: failed, {error}"
    except UncompletedJobError as error:
        return f"{one.name}: failed, {submissions.failure(one.name) or error}"
    return f"{one.name}: finished"


def _in_queue(submissions: Submissions) -> dict[str, str]:
    """Cells whose last job is still waiting or running, with its id."""
    queue = slurm.jobs(submissions.jobs.values()) or {}
    return {name: job for name, job in submissions.jobs.items() if job in queue and queue[job].alive}


def _check_threads(wanted: Profile, cells: list[experiments.PlannedCell]) -> None:
    for cell in cells:
        if cell.config.runtime.threads > wanted.cores:
            raise UserError(f"runtime.threads = {cell.config.runtime.threads} needs as many cores a rank, "
                            f"the profile has cores = {wanted.cores}")
