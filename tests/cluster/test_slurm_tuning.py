"""A tuning in a real Slurm, interrupted, compared with the same tuning in one process."""

import re

import pytest

pytestmark = pytest.mark.slurm

EXPERIMENT = """
name = "e"
rounds = 8
[partition]
clients = 4
[model]
hidden = [4]
[training]
validation = 0.2
[method]
pause = 2
since = 5
[checkpoint]
every = 1
[tune]
methods = ["methods_for_jobs:Slow"]
budget = 9000
trials = 2
rungs = 2
search_seeds = [7]
final_seeds = [0]
search = { "training.lr" = { low = 0.01, high = 1.0, log = true } }
"""


def texts(folder):
    """Return the results of every step of every run, and the outputs."""
    files = [*folder.glob("results/*.json"), folder / "tuned.csv"]
    return {file.name: file.read_text() for file in files}


def test_slurm_arrays_select_the_same_trials_as_one_process(cluster):
    """A task of the first rung is requeued while it runs; the second rung waits for it."""
    cluster.write("slow", "")
    cluster.write("e.toml", EXPERIMENT)
    cluster.profile(ranks_per_node=1, nodes=1)
    output = cluster.hpcfl("submit", "e.toml", "--profile", "bed", "--out", "out")
    first, *_, last = re.findall(r"jobs, (\d+)", output)
    untuned = "out/search/methods_for_jobs_Slow,untuned,seed=7"
    cluster.until(lambda: cluster.rounds(untuned) >= 4, "round 4 of 8")
    task = f"{first}_2"
    cluster.run("scontrol", "requeue", task)
    cluster.hurry()
    cluster.until(lambda: cluster.restarts(task) == 1, "the requeue")
    cluster.wait(task)
    cluster.wait(last)
    assert "not selected for rung 2" in cluster.log()
    cluster.hpcfl("tune", "e.toml", "--out", "alone")
    assert texts(cluster.folder / "out") == texts(cluster.folder / "alone")
    assert "finished" in cluster.hpcfl("status", "out")
    assert "complete" in cluster.hpcfl(
        "submit", "e.toml", "--profile", "bed", "--out", "out"
    )
