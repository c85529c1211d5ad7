"""``hpcfl submit``: submission of an experiment file to a cluster through submitit.

A sweep becomes an array of jobs, a tuning several arrays that wait for each other.
Inputs of a job are stored with its logs in ``OUT/jobs`` (``submission_folder``). Jobs
do not read the experiment file, which may be edited while they are pending.

The script of ``--dry-run`` contains the module ``submitit.core._submit``, because
submitit has no public function that returns its script without a submission.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import submitit
from submitit.core.utils import (
    FailedJobError,
    FailedSubmissionError,
    UncompletedJobError,
)

from hpcfl.adapters import make_adapter
from hpcfl.cluster import batch, slurm
from hpcfl.cluster import profile as profiles
from hpcfl.cluster.profile import Profile
from hpcfl.cluster.submission_folder import SubmittedJobs
from hpcfl.cluster.supervisor import Supervisor
from hpcfl.cluster.tuning_jobs import Task, list_stages
from hpcfl.commands import cells, experiments, needs, tune
from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess, Process
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import config, experiment_file
from hpcfl.experiment.config import Config
from hpcfl.files import atomic, scratch
from hpcfl.files.wording import list_names
from hpcfl.report.text import escape
from hpcfl.simulation.prepare import prepare
from hpcfl.storage import run_folder
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import TuningPlan

# submitit's limit on requeues is disabled, because the supervisor limits those without
# progress
UNLIMITED = 10**6
# submitit spells sbatch's options with '_', except for this one, which would otherwise
# be sent twice
SPELT_AS_SBATCH = ("open-mode",)
MOST_MINUTES = 10**6  # largest time limit in minutes of a job without Slurm


@dataclass(frozen=True)
class CellJob:
    """Job of a cell, or of a part of a tuning.

    Attributes:
        name: name of the cell or part.
        config: configuration of its run.
        supervisor: callable of the job.
        files: texts to write into ``OUT/jobs``, by path.
    """

    name: str
    config: Config
    supervisor: Supervisor
    files: dict[Path, str]


def submit(
    file: Path,
    overrides: Sequence[str],
    profile_name: str,
    out: Path | None,
    dry_run: bool,
) -> Iterator[str]:
    """Submit all cells that are neither complete nor in the queue, or a tuning.

    Args:
        file: experiment file.
        overrides: entries ``section.key=value`` of ``--set``.
        profile_name: name or path of the profile.
        out: results folder; None for the default.
        dry_run: Whether to describe the jobs and print the needs of the ranks, without
            writing or submitting anything.

    Returns:
        Lines on the jobs, with ``dry_run`` also those of ``Submitter.describe``. The
        cells of a sweep are submitted while the lines are read.

    Raises:
        UserError: The experiment, the profile or the folder cannot be used.
        RunFailure: Slurm or the disk fails, a cell that ran without Slurm fails, or a
            cell was not submitted because its folder cannot be used.
    """
    profile = profiles.load(profile_name)
    table = config.read(file, overrides)
    if "tune" in table:
        tuning = plans.read(table, str(file))
        if profile.cluster != "slurm":
            command = ["hpcfl", "tune", str(file)]
            for entry in overrides:
                command += ["--set", entry]
            if out is not None:
                command += ["--out", str(out)]
            raise UserError(
                f"{file}: has a section [tune], whose jobs must wait for each other, which "
                f"needs Slurm; to run it here: {shlex.join(command)}"
            )
        return iter(_submit_tuning(tuning, profile, out, dry_run=dry_run))
    plan = experiments.make_plan(table, str(file), out)
    return _submit_cells(plan, profile, dry_run)


def _submit_cells(
    plan: experiments.RunPlan, profile: Profile, dry_run: bool
) -> Iterator[str]:
    """Submit the cells of a sweep as one array; yield lines on them.

    Without Slurm the cells run one after the other, and the line of a cell follows its
    end.
    """
    plan = replace(plan, folder=plan.folder.resolve())
    submitter = Submitter(plan.folder, profile)
    open_cells, refused = _find_open(plan)
    _check_threads(profile, list(open_cells.values()))
    queued = {} if dry_run else submitter.find_queued()
    jobs = [
        submitter.make_cell_job(name, cell, plan.get_folder(name))
        for name, cell in open_cells.items()
        if name not in queued
    ]
    complete = len(plan.cells) - len(open_cells) - len(refused)
    lines = [f"{complete} of {len(plan.cells)} complete"] if complete else []
    lines += [f"{name}: not submitted, {error}" for name, error in refused.items()]
    lines += [submitter.describe_queued(name, open_cells.get(name)) for name in queued]
    if dry_run and complete == len(plan.cells):
        yield f"{lines[0]}, so no job would be submitted; choose another --out"
        return
    if dry_run and jobs:
        _show_needs(jobs[0].config, profile.ranks)
        cells.try_data({job.name: job.config for job in jobs}, jobs[0].config)
        lines += submitter.describe(jobs)
    yield from lines
    if jobs and not dry_run:
        yield from _send_cells(plan, submitter, jobs)
    if refused:
        raise RunFailure(
            f"{len(refused)} of {len(plan.cells)} cells were not submitted"
        )


def _submit_tuning(
    tuning: TuningPlan, profile: Profile, out: Path | None, dry_run: bool
) -> list[str]:
    """Submit an array for each rung of a tuning, one for the final runs, and a last
    job.

    The last job reports the outcome. Each array waits until the previous one has ended,
    with or without success.
    """
    folder = tune.find_folder(tuning, out).resolve()
    submitter = Submitter(folder, profile)
    configs = {
        method: tuning.make_config(tuning.make_untuned(method), 0, tuning.most_rounds)
        for method in tuning.section.methods
    }
    _check_threads(profile, list(configs.values()))
    queued = {} if dry_run else submitter.find_queued()
    if not dry_run:
        tune.begin(tuning, folder)
        tune.record_cells(tuning, folder)
    lines = []
    after: list[str] = []  # arrays for which the next array waits
    for stage in list_stages(tuning, folder):
        waiting = [task.name for task in stage.tasks if task.name in queued]
        jobs = [
            submitter.make_task_job(task, tuning, configs[task.method])
            for task in stage.tasks
            if task.name not in queued
        ]
        if waiting:
            lines.append(f"{stage.title}: {len(waiting)} in the queue")
        arrays = {_find_array(queued[name]) for name in waiting}
        if jobs and dry_run:
            if not after:
                _show_needs(jobs[0].config, profile.ranks)
            lines.append(f"{stage.title}: {len(jobs)} jobs")
            lines += submitter.describe(jobs, after)
            arrays.add("THE_ONE_BEFORE")
        elif jobs:
            submitter.write(jobs)
            ids = submitter.send(jobs, after)
            arrays |= {_find_array(job) for job in ids.values()}
            lines.append(
                f"{stage.title}: {len(jobs)} jobs, {', '.join(sorted(arrays))}"
            )
        after = sorted(arrays) or after
    if dry_run:
        return lines
    if not lines:
        return ["complete"]
    return [*lines, submitter.name_status_command()]


class Submitter(SubmittedJobs):
    """Jobs of a results folder, and their submission by a profile."""

    def __init__(self, out: Path, profile: Profile) -> None:
        """Read the jobs that were submitted before.

        Raises UserError for a folder that Slurm cannot use.
        """
        batch.check_folder(out)
        super().__init__(out)
        if self.folder.is_symlink():
            raise UserError(
                f"{self.folder}: is a link, and files would be written at its "
                "target; choose another --out"
            )
        self.out, self.profile = out, profile

    def make_cell_job(self, name: str, config: Config, out: Path) -> CellJob:
        """Return the job of a cell with results in ``out``."""
        config_path = self.get_config_path(name)
        command = batch.make_run_command(self.profile.interpreter, config_path, out)
        files = {config_path: json.dumps(config.resolved(), indent=1)}
        return self._make_job(name, config, out, command=command, files=files)

    def make_task_job(self, task: Task, tuning: TuningPlan, config: Config) -> CellJob:
        """Return a job of the tuning.

        Args:
            task: task of the job.
            tuning: the tuning.
            config: approximate configuration of the run.
        """
        config_path = self.get_config_path("tune")
        command = batch.make_tune_command(
            self.profile.interpreter,
            config_path,
            self.out,
            stage=task.stage,
            cell=task.cell,
        )
        files = {config_path: json.dumps(tuning.table, indent=1)}
        named = config.model_copy(update={"name": f"{self.name}-{task.name}"})
        place = self.out / task.place
        return self._make_job(task.name, named, place, command=command, files=files)

    def _make_job(
        self,
        name: str,
        config: Config,
        out: Path,
        *,
        command: list[str],
        files: dict[Path, str],
    ) -> CellJob:
        """Return a job that runs a command on every rank.

        Args:
            name: name of the cell or part.
            config: configuration of the run.
            out: folder of the run.
            command: words of the command.
            files: texts to write, by path.
        """
        profile, again = self.profile, self.get_script_path(name)
        supervisor = Supervisor(
            command=[*batch.make_launch_command(profile), *command],
            folder=str(out),
            record=str(self.get_record_path(name)),
            warning=profile.warning,
            max_requeues=profile.max_requeues,
            again=[] if batch.is_final(profile) else [str(again)],
        )
        options = batch.make_options(profile, config.name) | {
            "output": str(self.folder / "%j.log")
        }
        text = batch.make_script(
            options,
            batch.stop_at_errors(profile.setup),
            batch.make_supervisor_command(profile.interpreter, supervisor),
        )
        return CellJob(name, config, supervisor, {**files, again: text})

    def find_queued(self) -> dict[str, str]:
        """Return the ids of jobs that are pending or running, by name.

        Raises RunFailure if Slurm does not answer.
        """
        if self.profile.cluster != "slurm":
            return {}
        queue = slurm.find_jobs(self.jobs.values())
        if queue is None:
            raise RunFailure(
                "squeue fails, so the jobs in the queue are unknown, and no cell may be "
                "submitted twice; repeat the command when Slurm answers"
            )
        return {
            name: job
            for name, job in self.jobs.items()
            if job in queue and queue[job].is_alive
        }

    def describe_queued(self, name: str, config: Config | None) -> str:
        """Return a line on a cell's job in the queue.

        Args:
            name: name of the cell.
            config: configuration of the cell now; None if it needs no job any more.
        """
        line = f"{name}: in the queue as job {self.jobs[name]}"
        if config is None:
            return line
        there = experiment_file.flatten(self.read_config(name))
        here = experiment_file.flatten(json.loads(json.dumps(config.resolved())))
        keys = there.keys() | here.keys()
        changed = [key for key in sorted(keys) if there.get(key) != here.get(key)]
        if not changed:
            return line
        return (
            f"{line}, submitted with another {list_names(changed)}; to replace it: scancel "
            f"{self.jobs[name]}, then the same command"
        )

    def write(self, jobs: list[CellJob]) -> None:
        """Write the jobs' files into ``OUT/jobs``. Raises RunFailure."""
        with atomic.explain_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        texts: dict[Path, str] = {}
        for job in jobs:
            texts |= job.files
        for path, text in texts.items():
            atomic.write(path, text.encode())

    def name_status_command(self) -> str:
        """Return a line with the command that shows the jobs' progress."""
        return f"follow with: hpcfl status {shlex.quote(str(self.out))} --watch"

    def describe(self, jobs: list[CellJob], after: Sequence[str] = ()) -> list[str]:
        """Return the batch script of jobs on Slurm, and the command with which the
        first job starts its ranks.

        Args:
            jobs: the jobs; several become an array.
            after: ids of jobs that must end first.
        """
        command = shlex.join(jobs[0].supervisor.command)
        launch = f"{jobs[0].name}: the job starts its ranks by\n{command}"
        if self.profile.cluster != "slurm":
            return [launch]
        return [
            self._write_array_script(len(jobs), after),
            launch,
            *batch.describe_interpreter(self.profile),
            *batch.describe_gpus(self.profile),
        ]

    def _write_array_script(self, jobs: int, after: Sequence[str]) -> str:
        """Return the batch script that submitit will submit.

        Args:
            jobs: number of jobs.
            after: ids of jobs that must end first.
        """
        profile, options = self.profile, self._options(after)
        log = "%j"
        if jobs > 1:
            log = "%A_%a"
            options["array"] = f"0-{jobs - 1}%{min(jobs, profile.at_once)}"
        # submitit adds this option and the variable
        options |= {"output": str(self.folder / f"{log}_0_log.out")}
        setup = [*batch.stop_at_errors(profile.setup), "export SUBMITIT_EXECUTOR=slurm"]
        command = ["-u", "-m", "submitit.core._submit", str(self.folder)]
        return batch.make_script(options, setup, [profile.interpreter, *command])

    def _options(self, after: Sequence[str]) -> batch.Options:
        """Return sbatch's options for jobs that wait for the jobs in ``after``."""
        options = batch.make_options(self.profile, self.name)
        if after:
            options["dependency"] = ":".join(["afterany", *after])
        return options

    def send(self, jobs: list[CellJob], after: Sequence[str] = ()) -> dict[str, str]:
        """Submit jobs as one array; return the id of each job by name.

        Args:
            jobs: the jobs.
            after: ids of jobs that must end first.

        Raises:
            RunFailure: Slurm rejects the jobs.
        """
        # ``exec``, so that Python itself receives Slurm's warning
        python = f"exec {shlex.quote(self.profile.interpreter)}"
        executor = submitit.SlurmExecutor(
            self.folder, max_num_timeout=UNLIMITED, python=python
        )
        executor.update_parameters(
            additional_parameters={
                key if key in SPELT_AS_SBATCH else key.replace("-", "_"): value
                for key, value in self._options(after).items()
            },
            wckey=None,  # submitit sends a wckey by default
            setup=batch.stop_at_errors(self.profile.setup) or None,
            use_srun=False,
            stderr_to_stdout=True,
            array_parallelism=self.profile.at_once,
        )
        try:
            with executor.batch():
                submitted = [executor.submit(job.supervisor) for job in jobs]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise RunFailure(
                f"Slurm rejected the job: {' '.join(str(error).split())}"
            ) from error
        ids = {
            job.name: slurm_job.job_id
            for job, slurm_job in zip(jobs, submitted, strict=True)
        }
        self.add(ids)
        return ids

    def run_without_slurm(self, jobs: Sequence[CellJob]) -> Iterator[str]:
        """Run cells without Slurm one after the other; yield a line on each.

        Raises RunFailure after the last cell if some failed, and Interrupted.
        """
        failures = 0
        for job in jobs:
            reason = self.run_cell(job)
            if reason is None:
                yield f"{job.name}: finished"
            else:
                failures += 1
                yield f"{job.name}: failed, {reason}"
        if failures:
            raise RunFailure(f"{failures} of {len(jobs)} cells failed")

    def run_cell(self, job: CellJob) -> str | None:
        """Run a cell without Slurm and wait for its end; return the reason of a failure.

        Raises Interrupted.
        """
        try:
            if self.profile.cluster == "debug":
                folder = Path(job.supervisor.folder)
                if not run(job.config, folder, OneProcess()):
                    experiments.report_complete(job.config, folder)
            else:
                minutes = min(MOST_MINUTES, self.profile.seconds / 60)
                executor = submitit.LocalExecutor(self.folder)
                executor.update_parameters(timeout_min=max(1, int(minutes)))
                executor.submit(job.supervisor).result()
        except (UserError, RunFailure) as error:
            return str(error)
        except UncompletedJobError as error:
            return self.read_failure(job.name) or str(error)
        return None


def _send_cells(
    plan: experiments.RunPlan, submitter: Submitter, jobs: list[CellJob]
) -> Iterator[str]:
    """Submit the jobs of cells, or run them without Slurm; yield lines on them."""
    plan.record()
    submitter.write(jobs)
    if submitter.profile.cluster == "slurm":
        for name, id in submitter.send(jobs).items():
            yield f"{name}: job {id}"
        yield submitter.name_status_command()
    else:
        yield from submitter.run_without_slurm(jobs)


def _find_open(
    plan: experiments.RunPlan,
) -> tuple[dict[str, Config], dict[str, UserError]]:
    """Return incomplete cells with usable folders, and the errors of other cells, by
    name.

    Raises UserError if no cell has a usable folder.
    """
    open_cells, refused = dict[str, Config](), dict[str, UserError]()
    for name, cell in plan.cells.items():
        try:
            if not run_folder.examine(plan.get_folder(name), cell, fresh=False):
                open_cells[name] = cell
        except UserError as error:
            refused[name] = _explain_refusal(error, plan.get_folder(name), cell)
    if len(refused) == len(plan.cells):
        raise next(iter(refused.values()))
    return open_cells, refused


def _explain_refusal(error: UserError, folder: Path, cell: Config) -> UserError:
    """Return the error of a cell's folder with the remedy in place of ``--fresh``."""
    try:
        run_folder.examine(folder, cell, fresh=True)
    except UserError:
        return error
    return UserError(
        f"{error}; hpcfl submit has no --fresh, so move the folder yourself"
    )


def _find_array(job: str) -> str:
    """Return the id of the array that contains a job, or the job itself."""
    return job.partition("_")[0]


def _check_threads(profile: Profile, configs: list[Config]) -> None:
    """Raise UserError if a run uses more threads than a rank has cores."""
    for one in configs:
        if one.runtime.threads > profile.cores:
            raise UserError(
                f"runtime.threads = {one.runtime.threads} needs as many cores per rank, but "
                f"the profile has cores = {profile.cores}"
            )


def _show_needs(config: Config, ranks: int) -> None:
    """Print the needs of the server and of every rank.

    The forecast is for CPUs, because the submitting host may have no GPU. A GPU that
    trains more lanes at the same time needs more. Raises UserError.

    Args:
        config: configuration of the run.
        ranks: number of ranks of the job.
    """
    runtime = config.runtime.model_copy(update={"device": "cpu"})
    config = config.model_copy(update={"runtime": runtime})
    worker = Process(min(1, ranks - 1), ranks)
    prepared = prepare(config, worker, make_adapter(config.adapter)).keep_few_samples()
    scratch.return_freed_memory()
    of_ranks = needs.forecast_rank_needs(prepared)
    server = needs.compute_server_needs(prepared)
    print(needs.describe_needs(prepared, needs.Needs(of_ranks, server)))
    print(needs.describe_model(prepared))
    for note in prepared.notes:
        print(f"note: {escape(note)}")
