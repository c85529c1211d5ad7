"""Queries and requests to Slurm.

Each of them may fail, because some sites have no Slurm commands on compute nodes.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

TIMEOUT = 20  # seconds for an answer of the controller
# squeue's format [days-][hours:]minutes:seconds
TIME_LEFT = re.compile(r"\s*(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\|")
# Prefixes of environment variables that a new job must not inherit.
OF_THIS_JOB = ("SLURM_ARRAY_", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class Queued:
    """A job in Slurm's queue, possibly already ended.

    Attributes:
        state: Slurm's state, such as PENDING or RUNNING.
        reason: reason why the job is pending.
        restarts: number of requeues.
    """

    state: str
    reason: str
    restarts: int

    @property
    def is_alive(self) -> bool:
        """Return whether the job is pending or running."""
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


def find_own_job() -> str | None:
    """Return the id of this process's job, ARRAY_TASK for a task of an array; None
    outside jobs.
    """
    array, task = (
        os.environ.get("SLURM_ARRAY_JOB_ID"),
        os.environ.get("SLURM_ARRAY_TASK_ID"),
    )
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def find_jobs(ids: Iterable[str]) -> dict[str, Queued] | None:
    """Return jobs that Slurm still knows, by id; None if Slurm does not answer.

    For a task of an array, all tasks of the array are returned.

    Args:
        ids: ids of the jobs.
    """
    wanted = {job.partition("_")[0] for job in ids}  # ids without the task's number
    if not wanted:
        return {}
    # All jobs of the user are queried, because a query with an unknown id fails.
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


def find_seconds_left() -> float | None:
    """Return the seconds until this process's job reaches its time limit.

    The result is None outside jobs, without a limit, and if it is unknown.
    """
    if (job := os.environ.get("SLURM_JOB_ID")) is None:
        return None
    query = ["squeue", "--noheader", f"--jobs={job}", "--Format=TimeLeft:|"]
    answer = TIME_LEFT.match(_ask(query) or "")
    if answer is not None:
        days, hours, minutes, seconds = (int(unit or 0) for unit in answer.groups())
        return ((24 * days + hours) * 60 + minutes) * 60.0 + seconds
    end = os.environ.get("SLURM_JOB_END_TIME", "")  # releases before 23.02 lack it
    return float(end) - time.time() if end.isdecimal() else None


def requeue(job: str) -> bool:
    """Requeue a job; return whether that succeeded.

    Slurm kills the job shortly afterwards.
    """
    return _ask(["scontrol", "requeue", job]) is not None


def submit_after(job: str, script: list[str], restarts: int) -> str | None:
    """Submit a batch script that starts when another job has ended.

    Args:
        job: id of the other job.
        script: file of the script, and its arguments.
        restarts: number of earlier starts, which ``restarts`` of the new job includes.

    Returns:
        The id of the new job, or None after a failure.
    """
    # sbatch passes on this environment, but the new job does not belong to this array.
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


def count_restarts() -> int:
    """Return the number of earlier starts: Slurm's requeues and those of preceding
    jobs.
    """
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(
        os.environ.get("HPCFL_RESTARTS") or 0
    )


def _ask(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    """Return the output of a Slurm command; None if it is missing or fails."""
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
