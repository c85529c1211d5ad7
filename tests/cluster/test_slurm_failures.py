"""Runs in a real Slurm in which a job, a process, a node or the controller ends early;
the runs always finish with the same bits.
"""

import os
import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm


def test_scontrol_requeue(cluster, undisturbed):
    """Start new processes; all other tests of this folder fork them."""
    cluster.start_afresh()
    job = cluster.start_until_round_three()
    cluster.run("scontrol", "requeue", job)
    cluster.hurry()
    cluster.wait(job)
    assert cluster.restarts(job) == 1
    assert cluster.digest() == undisturbed


def test_killed_rank_ends_the_job_and_the_next_one_resumes(cluster, undisturbed):
    cluster.experiment(pause=3)
    (job,) = cluster.submit()
    cluster.wait_for_round(3)
    pid = re.search(r"rank 2 on \S+ \(pid (\d+)", cluster.log()).group(1)
    os.kill(int(pid), signal.SIGKILL)
    cluster.wait(job, "FAILED")
    assert re.search(r"task 2: Killed", cluster.log())
    assert re.search(
        r"failed +.*code 137; ",
        cluster.hpcfl("status", "out"),
    )
    done = cluster.rounds()
    assert 2 <= done < 20  # the checkpoint of round 3 may be incomplete
    cluster.hurry()
    (job,) = cluster.submit()
    cluster.wait(job)
    assert f"after round {done}" in cluster.log()
    assert cluster.digest() == undisturbed


def test_cancelled_job_is_not_requeued(cluster):
    cluster.experiment(pause=3)
    (job,) = cluster.submit()
    cluster.wait_for_round(2)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    assert cluster.restarts(job) == 0
    assert re.search("e +stopped ", cluster.hpcfl("status", "out"))


def test_a_job_continues_while_the_controller_restarts(cluster, undisturbed):
    job = cluster.start_until_round_three()
    os.kill(daemon(cluster, "slurmctld"), signal.SIGKILL)
    done = cluster.rounds()
    cluster.until(lambda: cluster.rounds() > done, "a round without the controller")
    assert re.search(r"e +running ", cluster.hpcfl("status", "out"))
    cluster.run("slurmctld")
    cluster.until(lambda: answers(cluster, job), "the controller")
    cluster.hurry()
    cluster.wait(job)
    assert cluster.restarts(job) == 0
    assert cluster.digest() == undisturbed


def test_a_job_is_requeued_if_its_node_fails(cluster, undisturbed):
    """All processes of n2 are killed. The test does not wait for the 300 s after which
    Slurm declares the node down.
    """
    job = cluster.start_until_round_three()
    for pid in [daemon(cluster, "slurmd-n2"), *processes(job, "n2")]:
        os.kill(pid, signal.SIGKILL)
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=died")
    done = cluster.rounds()
    cluster.hurry()
    cluster.run("slurmd", "-N", "n2")
    # The daemon may have restarted the node already.
    resume = "scontrol", "update", "nodename=n2", "state=resume"
    cluster.run(*resume, check=False)
    cluster.until(lambda: cluster.restarts(job) == 1, "the requeue")
    cluster.wait(job)
    assert re.search(rf"after round {done}\b", cluster.log())
    assert cluster.digest() == undisturbed


def answers(cluster, job):
    """Return whether the controller reports the job as running."""
    queue = cluster.run(
        "squeue", "--noheader", "--jobs", job, "--Format=State:|", check=False
    )
    return "RUNNING" in queue


def daemon(cluster, name):
    """Return the id of a process of the test Slurm."""
    folder = Path(cluster.environment["SLURM_CONF"]).parent
    return int((folder / f"{name}.pid").read_text())


def processes(job, node):
    """Return the ids of a job's processes on a node: Slurm's, its tasks and the ranks."""
    mine = {f"SLURM_JOB_ID={job}", f"SLURMD_NODENAME={node}"}
    found = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environment.read_text(errors="replace").split("\0")
            if not mine <= set(variables):
                continue
            status = environment.with_name("status").read_text()
        except OSError:  # it has ended
            continue
        found.add(int(environment.parent.name))
        found.add(int(re.search(r"PPid:\s+(\d+)", status).group(1)))
    return found - {1, os.getpid()}
