"""``hpcfl submit``: send an experiment file to a cluster through submitit, a sweep as
an array of jobs.

What a job needs lies with its logs in ``OUT/jobs`` (``submission_folder``). It does not
depend on the experiment file any more, which may be edited while jobs wait.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import (
    FailedJobError,
    FailedSubmissionError,
    UncompletedJobError,
)

# private, but what submitit itself makes its scripts with: a dry run shows just what
# would be sent
from submitit.slurm.slurm import _make_sbatch_string

from hpcfl.cluster import batch, forecast, slurm
from hpcfl.cluster import profile as profiles
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

UNLIMITED = (
    10**6
)  # submitit's own limit on requeues; ours counts those without progress


@dataclass(frozen=True)
class CellJob:
    """A cell that is to be submitted."""

    name: str
    config: Config
    supervisor: Supervisor  # what the job runs
    files: dict[Path, str]  # texts to be written into ``OUT/jobs``


def submit(
    file: Path,
    overrides: Iterable[str],
    profile_name: str,
    out: Path | None,
    dry_run: bool,
) -> list[str]:
    """Submit the cells that are neither complete nor in the queue; return lines that
    say what was done.

    With ``dry_run`` nothing is written or submitted; what the ranks need is printed,
    and the batch script is the last of the lines. Raises UserError or RunFailure.
    """
    profile = profiles.load(profile_name)
    plan = experiments.make_plan(config.read(file, overrides), str(file), out)
    folder = plan.folder.resolve()
    batch.check_folder(folder)
    submissions = Submissions(folder)
    if submissions.folder.is_symlink():
        raise UserError(
            f"{submissions.folder}: is a link, and files would be written where it "
            "leads; choose another --out"
        )
    open_cells, refused = _open(plan, folder)
    _check_threads(profile, open_cells)
    queued = (
        _in_queue(submissions) if profile.cluster == "slurm" and not dry_run else {}
    )
    jobs = [
        _job(profile, submissions, folder / cell.folder, cell)
        for cell in open_cells
        if cell.name not in queued
    ]
    complete = len(plan.cells) - len(open_cells) - len(refused)
    lines = [f"{complete} of {len(plan.cells)} complete"] if complete else []
    lines += [f"{name}: refused, {error}" for name, error in refused.items()]
    lines += [f"{name}: in the queue as job {job}" for name, job in queued.items()]
    if dry_run and jobs:
        forecast.show(jobs[0].config, profile.ranks)
        lines.append(script(profile, jobs, submissions))
    if dry_run or not jobs:
        return lines
    plan.record()
    with atomic.explained(submissions.folder):
        submissions.folder.mkdir(parents=True, exist_ok=True)
    for path, text in [item for job in jobs for item in job.files.items()]:
        atomic.write(path, text.encode())
    return [*lines, *_send(profile, jobs, submissions)]


def _open(
    plan: experiments.Plan, folder: Path
) -> tuple[list[experiments.PlannedCell], dict[str, UserError]]:
    """The cells that are not complete and whose folders can be used; and by name, why
    other folders cannot.

    Raises UserError if no cell's folder can be used.
    """
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


def script(profile: Profile, jobs: list[CellJob], submissions: Submissions) -> str:
    """The batch script as submitit will send it; without Slurm, the command that starts
    the ranks.
    """
    if profile.cluster != "slurm":
        return shlex.join(jobs[0].supervisor.command)
    array: dict[str, Any] = {"map_count": len(jobs)} if len(jobs) > 1 else {}
    command = f"{_python()} -u -m submitit.core._submit {shlex.quote(str(submissions.folder))}"
    return _make_sbatch_string(
        command, submissions.folder, **_parameters(profile, submissions.name), **array
    )


def _job(
    profile: Profile, submissions: Submissions, out: Path, cell: experiments.PlannedCell
) -> CellJob:
    """The job of a cell whose results go to ``out``."""
    frozen, again = submissions.frozen(cell.name), submissions.script(cell.name)
    command = [*batch.launcher(profile), *batch.experiment(sys.executable, frozen, out)]
    supervisor = Supervisor(
        command,
        str(out),
        str(submissions.record(cell.name)),
        profile.warning,
        profile.max_requeues,
        [str(again)],
    )
    options = batch.options(profile, cell.config.name) | {
        "output": str(submissions.folder / "%j.log")
    }
    text = batch.script(
        options, profile.setup, batch.supervised(sys.executable, supervisor)
    )
    return CellJob(
        cell.name,
        cell.config,
        supervisor,
        {frozen: json.dumps(cell.config.resolved(), indent=1), again: text},
    )


def _parameters(profile: Profile, name: str) -> dict[str, Any]:
    """submitit's parameters for a job called ``name``.

    submitit spells sbatch's options with '_' and sets some itself, which ours replace.
    """
    options = {
        key.replace("-", "_"): value
        for key, value in batch.options(profile, name).items()
    }
    return {
        "additional_parameters": options,
        "setup": profile.setup or None,
        "use_srun": False,
        "stderr_to_stdout": True,
        "array_parallelism": profile.at_once,
    }


def _python() -> str:
    """How a batch script calls Python: by ``exec``, so that Slurm's warning reaches
    that process itself.
    """
    return f"exec {shlex.quote(sys.executable)}"


def _send(profile: Profile, jobs: list[CellJob], submissions: Submissions) -> list[str]:
    """Submit the jobs, or run them here without Slurm; return lines that say what was
    done.

    Raises RunFailure or Interrupted.
    """
    if profile.cluster != "slurm":
        return [_run_here(profile, job, submissions) for job in jobs]
    executor = submitit.SlurmExecutor(
        submissions.folder, max_num_timeout=UNLIMITED, python=_python()
    )
    executor.update_parameters(**_parameters(profile, submissions.name))
    try:
        with executor.batch():
            submitted = [executor.submit(job.supervisor) for job in jobs]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise RunFailure(
            f"Slurm did not take the job: {' '.join(str(error).split())}"
        ) from error
    ids = {
        job.name: slurm_job.job_id
        for job, slurm_job in zip(jobs, submitted, strict=True)
    }
    submissions.add(ids)
    return [
        *(f"{name}: job {id}" for name, id in ids.items()),
        f"follow with: hpcfl status {shlex.quote(str(submissions.folder.parent))} --watch",
    ]


def _run_here(profile: Profile, job: CellJob, submissions: Submissions) -> str:
    """Run a cell without Slurm and wait until it has ended; return a line. Raises
    Interrupted.
    """
    try:
        if profile.cluster == "debug":
            experiments.run_one(
                job.config, Path(job.supervisor.folder), False, OneProcess()
            )
        else:
            executor = submitit.LocalExecutor(submissions.folder)
            executor.update_parameters(timeout_min=max(1, profile.seconds // 60))
            executor.submit(job.supervisor).result()
    except (UserError, RunFailure) as error:
        return f"{job.name}: failed, {error}"
    except UncompletedJobError as error:
        return f"{job.name}: failed, {submissions.failure(job.name) or error}"
    return f"{job.name}: finished"


def _in_queue(submissions: Submissions) -> dict[str, str]:
    """The cells whose last job still waits or runs: name → id of the job.

    Raises RunFailure if Slurm does not answer.
    """
    queue = slurm.jobs(submissions.jobs.values())
    if queue is None:
        raise RunFailure(
            "Slurm does not say which jobs are in the queue (squeue fails), and no cell may be "
            "submitted twice; try again when it answers"
        )
    return {
        name: job
        for name, job in submissions.jobs.items()
        if job in queue and queue[job].alive
    }


def _check_threads(profile: Profile, cells: list[experiments.PlannedCell]) -> None:
    """Raise UserError if a cell wants more threads than a rank has cores."""
    for cell in cells:
        if cell.config.runtime.threads > profile.cores:
            raise UserError(
                f"runtime.threads = {cell.config.runtime.threads} needs as many cores a rank, "
                f"the profile has cores = {profile.cores}"
            )
