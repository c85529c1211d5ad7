"""A tuning that is killed at two moments and continued on other ranks selects the same
trial.
"""

import signal
import time
from pathlib import Path

import pytest
from playing import call, read_files

pytestmark = pytest.mark.mpi

TUNE = """[training]
lr = 0.1
batch_size = 4
validation = 0.25
[tune]
methods = ["fedavg"]
budget = 300
trials = 2
rungs = 2
search_seeds = [7]
final_seeds = [0]
search = { "training.lr" = { low = 0.01, high = 0.3, log = true } }
"""
OUTCOME = ["tuned.csv", "curve.csv", "chosen/fedavg.toml"]
MOMENTS = [0, 3]  # number of results when it is killed
PATIENCE = 120


def ended(folder):
    return len(list(folder.glob("results/*.json")))


def test_killed_and_continued_on_other_ranks_the_choice_is_the_same(
    start, experiment, tmp_path, chance
):
    file = Path(experiment(""))
    text = file.read_text().replace("[training]\nlr = 0.1\nbatch_size = 4\n", TUNE)
    file.write_text(text.replace("seed = 3\nrounds = 3", "rounds = 30"))
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    assert call("tune", file, "--out", calm) == 0
    for moment, ranks in zip(MOMENTS, [2, 3], strict=True):
        job = start(ranks, file, "--out", disturbed, command="tune")
        deadline = time.monotonic() + PATIENCE
        while job.process.poll() is None and ended(disturbed) < moment:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        job.signal(signal.SIGKILL, job.pids())
        code, output = job.wait()
        assert code != 0, f"the kill came after the end\n{output}"
    assert call("tune", file, "--out", disturbed) == 0
    for name in OUTCOME:
        assert (disturbed / name).read_bytes() == (calm / name).read_bytes(), name
    assert read_files(calm / "results") == read_files(disturbed / "results")
