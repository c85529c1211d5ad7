"""What a Slurm job can ask of Slurm. Every answer may be missing: some sites have no Slurm commands
on compute nodes."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

TIMEOUT = 20  # seconds for an answer of the controller
# variables that Slurm does not replace in a job that has none of its own
OWN = ("SLURM_ARRAY_", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class Queued:
    """A job in the queue: Slurm's state (PENDING, RUNNING …), why it waits, and how often it was requeued."""

    state: str
    reason: str
    restarts: int

    @property
    def alive(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("PENDING", "RUNNING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED",
                              "PREEMPTED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED",
                              "SPECIAL_EXIT")


def own_job() -> str | None:
    """The id of the job that this process belongs to, ``ARRAY_TASK`` for a task of an array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def jobs(ids: Iterable[str]) -> dict[str, Queued] | None:
    """Those of the jobs that are in the queue; None where Slurm cannot be asked."""
    wanted = sorted({job.partition("_")[0] for job in ids})
    if not wanted:
        return {}
    # An id that Slurm has forgotten is an error when asked for alone, so everything of this
    # user is asked for.
    answer = _ask(["squeue", "--me", "--noheader", "--array", "--states=all",
                   "--Format=JobArrayID:|,State:|,Reason:|,RestartCnt:|"])
    if answer is None:
        return None
    found = {}
    for line in answer.splitlines():
        job, state, reason, restarts, *_ = (part.strip() for part in line.split("|"))
        if job.partition("_")[0] in wanted:
            found[job] = Queued(state, reason, int(restarts) if restarts.isdigit() else 0)
    return found


def requeue(job: str) -> bool:
    """Send the job back to the queue; whether that worked. The job is killed a moment later."""
    return _ask(["scontrol", "requeue", job]) is not None


def submit_after(job: str, again: list[str], restarts: int) -> str | None:
    """Submit a batch script with its arguments that starts when ``job`` has ended; the new job's id,
    None if that failed."""
    # sbatch hands this environment on, and the new job is no task of this one's array.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    answer = _ask(["sbatch", "--parsable", f"--dependency=afterany:{job}", *again],
                  environment | {"HPCFL_RESTARTS": str(restarts)})
    return None if answer is None else answer.strip().partition(";")[0]


def restarts() -> int:
    """How often this job has been in the queue before, by Slurm's count or that of the job it follows."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) + int(os.environ.get("HPCFL_RESTARTS") or 0)


def _ask(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True,
                                env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
