"""Questions and requests to Slurm.

Any may go unanswered: some sites have no Slurm commands on compute nodes.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

TIMEOUT = 20  # seconds for an answer of the controller
# Beginnings of environment variables that Slurm leaves as they are in a job that has
# none of its own.
OF_THIS_JOB = ("SLURM_ARRAY_", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class Queued:
    """A job as Slurm's queue has it, which may have ended already."""

    state: str  # Slurm's word, such as PENDING or RUNNING
    reason: str  # why it waits
    restarts: int  # how often it was requeued

    @property
    def alive(self) -> bool:
        """Whether it waits or runs."""
        return self.state in (
            "PENDING",
            "RUNNING",
            "CONFIGURING",
            "REQUEUED",
            "REQUEUE_HOLD",
            "SUSPENDED",
            "PREEMPTED",
            "COMPLETING",
            "RESIZING",
            "SIGNALING",
            "STAGE_OUT",
            "STOPPED",
            "SPECIAL_EXIT",
        )


def own_job() -> str | None:
    """The id of this process's job, ARRAY_TASK for a task of an array; None outside of
    jobs.
    """
    array, task = (
        os.environ.get("SLURM_ARRAY_JOB_ID"),
        os.environ.get("SLURM_ARRAY_TASK_ID"),
    )
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def jobs(ids: Iterable[str]) -> dict[str, Queued] | None:
    """Those of the jobs, by id, that Slurm still knows; None if it cannot be asked.

    For a task of an array, all tasks of the array are returned.
    """
    wanted = {job.partition("_")[0] for job in ids}  # without the number of a task
    if not wanted:
        return {}
    # To ask for an id that Slurm has forgotten is an error, so all jobs of the user are
    # asked for.
    answer = _ask(
        [
            "squeue",
            "--me",
            "--noheader",
            "--array",
            "--states=all",
            "--Format=JobArrayID:|,State:|,Reason:|,RestartCnt:|",
        ]
    )
    if answer is None:
        return None
    queue = {}
    for line in answer.splitlines():
        job, state, reason, restarts, *_ = (part.strip() for part in line.split("|"))
        if job.partition("_")[0] in wanted:
            queue[job] = Queued(
                state, reason, int(restarts) if restarts.isdigit() else 0
            )
    return queue


def requeue(job: str) -> bool:
    """Send the job back to the queue and return whether that worked. Slurm kills it a
    moment later.
    """
    return _ask(["scontrol", "requeue", job]) is not None


def submit_after(job: str, script: list[str], restarts: int) -> str | None:
    """Submit a batch script that starts when ``job`` has ended; return the new job's
    id, None if that failed.

    script: its file and arguments. restarts: what ``restarts`` is to count in the new
    job.
    """
    # sbatch hands this environment on, but the new job is no task of this one's array.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OF_THIS_JOB)
    }
    answer = _ask(
        ["sbatch", "--parsable", f"--dependency=afterany:{job}", *script],
        environment | {"HPCFL_RESTARTS": str(restarts)},
    )
    return None if answer is None else answer.strip().partition(";")[0]


def restarts() -> int:
    """How often this job was started before: Slurm's count of requeues, and that of the
    job it follows.
    """
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(
        os.environ.get("HPCFL_RESTARTS") or 0
    )


def _ask(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    """What a Slurm command prints; None if there is no such command or it fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
