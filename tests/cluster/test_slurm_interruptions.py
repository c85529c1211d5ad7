"""Runs in a real Slurm that Slurm interrupts by its limits and its queue; the runs
always finish with the same bits.
"""

import re
import shutil

import pytest
from places import ROOT

pytestmark = pytest.mark.slurm

SCRIPT = ROOT / "slurm" / "job.sbatch"


def test_time_limit_hit_twice(cluster, undisturbed):
    """The limit is two minutes, of which Slurm warns at once, so every start has only
    some seconds.
    """
    cluster.experiment(pause=5, every="auto", since=1)
    # On a slow machine many starts make no progress.
    cluster.profile(time="0:02:00", warning=115, ranks_per_node=1, max_requeues=20)
    (job,) = cluster.submit()
    cluster.until(lambda: cluster.restarts(job) >= 2, "the second time limit")
    assert cluster.finish(job) == undisturbed
    assert cluster.restarts(job) >= 2
    assert "stopped in time" in cluster.log()


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
    assert cluster.finish(job) == undisturbed


def test_preempted_by_a_higher_partition(cluster, undisturbed):
    job = cluster.start_until_round_three()
    options = "--parsable --partition=high --nodes=2 --exclusive"
    other = cluster.run("sbatch", *options.split(), "--wrap=sleep 2").strip()
    cluster.until(lambda: cluster.restarts(job) == 1, "the preemption")
    assert re.search(r"queued +.*requeued 1 time", cluster.hpcfl("status", "out"))
    assert cluster.finish(other, job) == undisturbed


def test_a_plain_batch_script_is_requeued_to_the_same_digest(cluster, undisturbed):
    cluster.experiment(pause=3)
    job = cluster.run("sbatch", "--parsable", str(SCRIPT), "e.toml", "out").strip()
    cluster.wait_for_round(3)
    cluster.warn(job)
    cluster.until(lambda: cluster.restarts(job) == 1, "the requeue")
    assert cluster.finish(job) == undisturbed
    assert "stopped in time" in (cluster.folder / f"hpcfl-{job}.log").read_text()


def test_without_scontrol_jobs_follow_each_other(cluster, undisturbed):
    """First a task of an array is stopped, then its follow-up job, which is no task."""
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
        cluster.warn(job)
        cluster.until(lambda job=job: cluster.ended(job), f"the end of {job}")
        state = r"seed=0 +(queued|starting|running) "
        assert re.search(state, cluster.hpcfl("status", "out"))
        job = cluster.submit()[0]  # already in the queue
        assert "_" not in job
    assert cluster.finish(other, job, out="out/seed=0") == undisturbed


def test_a_job_shorter_than_a_round_is_not_requeued_for_ever(cluster):
    cluster.experiment(pause=1000, since=2, every=20)
    cluster.profile(warning=20, max_requeues=0)
    (job,) = cluster.submit()
    cluster.wait_for_round(1)
    cluster.warn(job)
    cluster.wait(job, "FAILED")
    assert "in the middle of a round" in cluster.log()
    assert "max_requeues = 0" in cluster.hpcfl("status", "out")
