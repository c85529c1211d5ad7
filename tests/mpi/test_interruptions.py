"""Jobs that are killed or signalled at random moments, and resumed by the same command,
also on other ranks: the same bits.
"""

import signal
import time

import jobs
import pytest
from recorded import assert_alike

from hpcfl.storage import results
from hpcfl.storage.manifest import find_latest

pytestmark = pytest.mark.mpi

ROUNDS = 20
HALF = "[participation]\nfraction = 0.5\n"
METHODS = {
    "fedala": "[method]\nname = 'fedala'\nmost_epochs = 12\n" + HALF,
    # the first line belongs to the file's last table, [checkpoint]
    "diversifed": "best = true\n[method]\nname = 'diversifed'\n" + HALF,
    "fednh": "[method]\nname = 'fednh'\n[newcomers]\nclients = 2\nepochs = 1\n",
    "private clients": "[method]\nname = 'scaffold'\n[privacy]\nunit = 'client'\n"
    "clip = 0.2\nnoise = 0.15\nadaptive_clip = true\n" + HALF,
}
KINDS = {
    "fedala": "SIGTERM",
    "diversifed": "SIGUSR1",
    "fednh": "all ranks",
    "private clients": "one rank",
}


def interrupt(kind, job, chance):
    """Interrupt a running job."""
    if kind == "one rank":
        job.signal(signal.SIGKILL, [chance.choice(job.ranks())])
    elif kind == "all ranks":
        job.signal(signal.SIGKILL, job.ranks())
    else:
        job.signal(getattr(signal, kind), [job.process.pid])  # mpiexec forwards it


@pytest.mark.parametrize("method", METHODS)
def test_resumed_runs_end_with_the_digest_of_the_undisturbed_one(
    start, alone, experiment, tmp_path, chance, method
):
    file, folder = experiment(METHODS[method], ROUNDS), tmp_path / "disturbed"
    chance.seed(method)
    assert alone(file, tmp_path / "calm") == 0
    kind, job = KINDS[method], start(chance.choice([2, 3]), file, "--out", folder)
    jobs.wait_for_round(job, folder, 2)
    time.sleep(chance.uniform(0, 0.03))
    interrupt(kind, job, chance)
    code, output = job.wait()
    assert code != 0, f"{kind} came after the end; more rounds are needed\n{output}"
    if kind.startswith("SIG"):
        assert code == 75 and "the same command continues" in output, output
    assert alone(file, folder) == 0
    assert jobs.digest(folder) == jobs.digest(tmp_path / "calm")
    calm, disturbed = (
        find_latest(one / "checkpoints").best for one in (tmp_path / "calm", folder)
    )
    assert (calm is not None) == (method == "diversifed")
    if calm is not None:
        assert (disturbed.round, disturbed.digest, disturbed.meta) == (
            calm.round,
            calm.digest,
            calm.meta,
        )
    same_metrics(tmp_path / "calm", folder)


def same_metrics(calm, disturbed):
    """Assert that every round occurs once, with the metrics of the undisturbed run."""
    one, other = results.read(calm), results.read(disturbed)
    assert other.completed == [ROUNDS]
    assert other.rounds.tolist() == list(range(1, ROUNDS + 2))
    assert_alike(one.values, other.values)


def test_partitioned_server_state_is_exact_after_kills_and_rank_changes(
    start, alone, experiment, tmp_path, chance
):
    """Five models of 264 kB are 1.3 MB, four of them in a file of at most 1 MiB."""
    # the first line belongs to the file's last table, [checkpoint]
    text = "best = true\nfile_size = 1\n[method]\nname = 'diversifed'\n" + HALF
    wide = ["--set", "model.hidden=[6000]", "--set", "checkpoint.every=1"]
    file, folder = experiment(text, ROUNDS), tmp_path / "killed"
    for ranks in (3, 2, 5):
        before = jobs.round_of(folder)
        job = start(ranks, file, *wide, "--out", folder)
        jobs.wait_for_round(job, folder, before + 2)
        time.sleep(chance.uniform(0, 0.1))
        job.signal(signal.SIGKILL, job.ranks())
        job.wait()
    parts = [shard.part for shard in find_latest(folder / "checkpoints").files]
    assert [part.rows for part in parts if part] == [4, 1]
    calm = tmp_path / "calm"
    assert alone(file, folder, *wide) == alone(file, calm, *wide) == 0
    assert jobs.digest(folder) == jobs.digest(calm)
    first, second = (
        find_latest(folder / "checkpoints"),
        find_latest(calm / "checkpoints"),
    )
    assert first.best.digest == second.best.digest
    assert sum(bool(shard.part) for shard in first.best.files) == 2


def test_a_run_killed_at_any_moment_has_the_same_digest(
    start, alone, experiment, tmp_path, chance
):
    """This includes moments before the first checkpoint: ranks start, prepare, and
    claim the folder.
    """
    file, folder = experiment("[method]\nname = 'cwfedavg'\n", 6), tmp_path / "killed"
    for _ in range(3):
        job = start(2, file, "--out", folder)
        time.sleep(chance.uniform(0.2, 3.0))
        job.signal(signal.SIGKILL, job.pids())
        job.wait()
    assert alone(file, folder) == alone(file, tmp_path / "calm") == 0
    assert jobs.digest(folder) == jobs.digest(tmp_path / "calm")
