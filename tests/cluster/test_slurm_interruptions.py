"""Runs in a real Slurm, interrupted in every way Slurm knows, and always finished with
the same bits.
"""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

SCRIPT = Path(__file__).parents[2] / "slurm" / "job.sbatch"


def in_round_three(cluster):
    """A job of slow rounds that has begun its third one."""
    cluster.experiment(pause=3)
    cluster.profile(ranks_per_node=1)
    (job,) = cluster.submit()
    cluster.wait_for_round(3)
    return job


def test_time_limit_hit_twice(cluster, undisturbed):
    """A limit of two minutes, of which Slurm warns at once: every start gets only some
    seconds.
    """
    cluster.experiment(pause=5, every="auto", since=1)
    # On a slow machine many starts come to nothing.
    cluster.profile(
        time="0:02:00",
        warning=115,
        ranks_per_node=1,
        max_requeues=20,
    )
    (job,) = cluster.submit()
    cluster.until(lambda: cluster.restarts(job) >= 2, "the second time limit")
    cluster.hurry()
    cluster.wait(job)
    assert cluster.restarts(job) >= 2
    assert "stopped in time" in cluster.log()
    assert cluster.digest() == undisturbed


def test_a_checkpoint_that_takes_half_of_the_warning(cluster, undisturbed):
    """It takes 5 s, a round 4 s: the job stops itself 55 s before its end, or 60 s on a
    slow machine. The warning alone would leave 5 s for both.
    """
    text = cluster.folder / cluster.experiment(pause=4, every="auto", since=1)
    text.write_text(text.read_text().replace(":Slow", ":Large"))
    cluster.profile(time="0:02:00", warning=10, ranks_per_node=1)
    (job,) = cluster.submit()
    cluster.until(lambda: cluster.restarts(job) == 1, "the time limit")
    assert "stopped in time" in cluster.log(), cluster.log()
    assert cluster.rounds() > 1
    assert "set warning = 60" in cluster.log()
    cluster.hurry()
    cluster.wait(job)
    assert cluster.digest() == undisturbed


def test_preempted_by_a_higher_partition(cluster, undisturbed):
    job = in_round_three(cluster)
    other = cluster.run(
        "sbatch",
        "--parsable",
        "--partition=high",
        "--nodes=2",
        "--exclusive",
        "--wrap=sleep 2",
    ).strip()
    cluster.until(lambda: cluster.restarts(job) == 1, "the preemption")
    assert re.search(r"queued +.*requeued 1 time", cluster.hpcfl("status", "out"))
    cluster.hurry()
    cluster.wait(other)
    cluster.wait(job)
    assert cluster.digest() == undisturbed


def test_scontrol_requeue(cluster, undisturbed):
    """The one test here whose processes are not forked."""
    cluster.start_afresh()
    job = in_round_three(cluster)
    cluster.run("scontrol", "requeue", job)
    cluster.hurry()
    cluster.wait(job)
    assert cluster.restarts(job) == 1
    assert cluster.digest() == undisturbed


def test_plain_batch_script(cluster, undisturbed):
    cluster.experiment(pause=3)
    job = cluster.run("sbatch", "--parsable", str(SCRIPT), "e.toml", "out").strip()
    cluster.wait_for_round(3)
    cluster.run("scancel", "--batch", "--signal=USR2", job)  # Slurm's warning, early
    cluster.until(lambda: cluster.restarts(job) == 1, "the requeue")
    cluster.hurry()
    cluster.wait(job)
    assert "stopped in time" in (cluster.folder / f"hpcfl-{job}.log").read_text()
    assert cluster.digest() == undisturbed


def test_without_scontrol_jobs_follow_each_other(cluster, undisturbed):
    """A task of an array is told to stop, then the job that follows it, which is no
    task.
    """
    (cluster.folder / "bin").mkdir()
    for program in ("sbatch", "squeue", "srun"):
        (cluster.folder / "bin" / program).symlink_to(shutil.which(program))
    cluster.experiment(pause=3, sweep="[sweep]\nseed = [0, 1]\n")
    cluster.profile(ranks_per_node=1, setup=[f"export PATH={cluster.folder}/bin"])
    job, other = cluster.submit()
    for done in (2, 4):
        cluster.until(
            lambda done=done: cluster.rounds("out/seed=0") > done,
            f"round {done} of job {job}",
        )
        cluster.run("scancel", "--batch", "--signal=USR2", job)
        cluster.until(lambda job=job: cluster.ended(job), f"the end of {job}")
        assert re.search(
            r"seed=0 +(queued|starting|running) ", cluster.hpcfl("status", "out")
        )
        job = cluster.submit()[0]  # already in the queue
        assert "_" not in job
    cluster.hurry()
    cluster.wait(other)
    cluster.wait(job)
    assert cluster.digest("out/seed=0") == undisturbed


def test_killed_rank_ends_the_job_and_the_next_one_resumes(cluster, undisturbed):
    cluster.experiment(pause=3)
    (job,) = cluster.submit()
    cluster.wait_for_round(3)
    pid = re.search(r"rank 2 on \S+ \(pid (\d+)", cluster.log()).group(1)
    os.kill(int(pid), signal.SIGKILL)
    cluster.wait(job, "FAILED")
    assert re.search(r"task 2: Killed", cluster.log())
    assert re.search(
        r"failed +.*the ranks ended with code 137; submitted",
        cluster.hpcfl("status", "out"),
    )
    done = cluster.rounds()
    assert 2 <= done < 20  # that of round 3 may not be complete
    cluster.hurry()
    (job,) = cluster.submit()
    cluster.wait(job)
    assert f"continues after round {done}" in cluster.log()
    assert cluster.digest() == undisturbed


def test_cancelled_job_is_not_requeued(cluster):
    cluster.experiment(pause=3)
    (job,) = cluster.submit()
    cluster.wait_for_round(2)
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    assert cluster.restarts(job) == 0
    assert re.search(
        r"e +stopped +.*the same command continues", cluster.hpcfl("status", "out")
    )


def test_rounds_longer_than_a_job_do_not_go_round_for_ever(cluster):
    cluster.experiment(pause=1000, since=2, every=20)
    cluster.profile(warning=20, max_requeues=0)
    (job,) = cluster.submit()
    cluster.wait_for_round(1)
    cluster.run(
        "scancel", "--batch", "--signal=USR2", job
    )  # the warning, without waiting for it
    cluster.wait(job, "FAILED")
    assert "in the middle of a round" in cluster.log()
    assert (
        "without a new checkpoint (round 0), more than max_requeues = 0"
        in cluster.hpcfl("status", "out")
    )


def test_the_controller_dies_and_starts_again(cluster, undisturbed):
    job = in_round_three(cluster)
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


def test_a_node_that_dies_sends_its_job_back_to_the_queue(cluster, undisturbed):
    """All processes of n2 are killed. Slurm's 300 s until it calls the node dead are
    not waited for.
    """
    job = in_round_three(cluster)
    for pid in [daemon(cluster, "slurmd-n2"), *processes(job, "n2")]:
        os.kill(pid, signal.SIGKILL)
    cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=died")
    done = cluster.rounds()
    cluster.hurry()
    cluster.run("slurmd", "-N", "n2")
    # The daemon may have brought the node back already.
    resume = "scontrol", "update", "nodename=n2", "state=resume"
    cluster.run(*resume, check=False)
    cluster.until(lambda: cluster.restarts(job) == 1, "the requeue")
    cluster.wait(job)
    assert re.search(rf"continues after round {done}\b", cluster.log())
    assert cluster.digest() == undisturbed


def answers(cluster, job):
    """Whether the controller knows the job as a running one."""
    queue = cluster.run(
        "squeue", "--noheader", "--jobs", job, "--Format=State:|", check=False
    )
    return "RUNNING" in queue


def daemon(cluster, name):
    """The id of a process of the test Slurm."""
    folder = Path(cluster.environment["SLURM_CONF"]).parent
    return int((folder / f"{name}.pid").read_text())


def processes(job, node):
    """The ids of a job's processes on a node: Slurm's own, its tasks and the ranks."""
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
