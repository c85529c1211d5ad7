"""Continued runs: damaged checkpoints, more rounds, another configuration, --fresh."""

import json
import shutil

import pytest
import tiny
from playing import play_once, read_files, run_alone
from refusals import expect_refusal

from hpcfl.commands import run as running
from hpcfl.simulation import preflight, start_checks
from hpcfl.simulation.federation import Federation
from hpcfl.simulation.prepare import Findings
from hpcfl.storage import results
from hpcfl.storage.manifest import find_latest
from hpcfl.trained import loading

pytestmark = pytest.mark.slow


def play(folder, method="cwfedavg", rounds=4, fresh=False, **sections):
    """Run until ``rounds`` with a checkpoint in every second round, and return the
    digest.
    """
    table = tiny.table(
        method, tiny.FEW, rounds=rounds, **{"checkpoint": {"every": 2}, **sections}
    )
    run_alone(table, folder, fresh)
    return find_latest(folder / "checkpoints").digest


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return ``calm(method, rounds)``, which returns the folder of an undisturbed run."""
    return play_once(play, tmp_path_factory.mktemp)


def digest(folder):
    return find_latest(folder / "checkpoints").digest


@pytest.fixture
def half(calm, tmp_path):
    """Return ``half(method)``, which returns a run of two rounds that tests may change."""

    def folder(method="cwfedavg"):
        return shutil.copytree(calm(method, 2), tmp_path / "run")

    return folder


def only_of_the_newest(folder):
    """Return a data file that the newest checkpoint has and the previous one lacks."""
    manifests = sorted((folder / "checkpoints").glob("manifest-*.json"))
    names = [
        {file["name"] for file in json.loads(path.read_text())["manifest"]["files"]}
        for path in manifests[-2:]
    ]
    return folder / "checkpoints" / sorted(names[1] - names[0])[0]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("method", "victim"),
    [
        ("cwfedavg", "data"),
        ({"name": "fedala", "most_epochs": 5}, "data"),
        ("cwfedavg", "manifest"),
    ],
    ids=str,
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(
    calm, half, printed, victim, method
):
    folder = half(method)
    newest = sorted((folder / "checkpoints").glob("manifest-*.json"))[-1]
    flip(only_of_the_newest(folder) if victim == "data" else newest)
    printed()
    digest_after = play(folder, method)
    output = printed()
    assert "after round 1" in output and f"{newest}: " in output
    assert digest_after == digest(calm(method))
    assert results.read(folder).rounds.tolist() == list(range(1, 6))


def test_a_killed_run_may_continue_to_fewer_rounds(calm, tmp_path, monkeypatch):
    """It was killed after round 8, before the checkpoint, and continues after round 4."""
    folder = tmp_path / "run"

    def die(self, number, wait):
        if number == 8:
            raise KeyboardInterrupt
        save(self, number, wait)

    save = Federation.checkpoint
    with monkeypatch.context() as patched:
        patched.setattr(running, "PUBLISH_EVERY", 0.0)
        patched.setattr(Federation, "checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            play(folder, rounds=12, checkpoint={"every": 4})
    assert results.read(folder).rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert play(folder, rounds=5) == digest(calm("cwfedavg", 5))
    shown, undisturbed = map(loading.load_run, (folder, calm("cwfedavg", 5)))
    assert shown.results.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert shown.summary.last == undisturbed.summary.last and not shown.notes


def test_other_frozen_parameters_than_at_the_beginning_are_refused(
    tmp_path, monkeypatch
):
    """Nothing is written, and no model with them is loaded from the folder."""
    folder, lora = tmp_path / "run", {"model": {"name": "tiny:lora"}}
    play(folder, "fedavg", rounds=2, **lora)
    before = read_files(folder)
    monkeypatch.setattr(tiny, "WEIGHTS", [6])
    words = rf"^{tmp_path / 'run'}: .*model\.name = 'tiny:lora' .*SHA-256 "
    with expect_refusal(words):
        play(folder, "fedavg", rounds=3, **lora)
    assert before.items() <= read_files(folder).items()
    with expect_refusal(words):
        loading.load_run(folder, {"tiny:lora", "tiny:blobs"}).model(client=0)


def one_by_one(monkeypatch):
    """Let the preflight find that clients cannot be batched."""
    unbatched = None, Findings(unbatched="own.py:3: cannot be batched")
    monkeypatch.setattr(preflight, "try_round", lambda *_: unbatched)


def test_a_resume_that_decides_otherwise_is_refused(half, monkeypatch):
    folder = half()
    before = read_files(folder)
    one_by_one(monkeypatch)
    with expect_refusal(r"one after the other now, .* --out or --fresh"):
        play(folder)
    assert before.items() <= read_files(folder).items()
    # the user may still request it
    play(folder, runtime={"lanes": 1})


def test_a_resume_keeps_training_clients_one_by_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        one_by_one(patched)
        play(tmp_path / "run", rounds=2)
    with expect_refusal(r"side by side now, .* --out or --fresh"):
        play(tmp_path / "run")
    with monkeypatch.context() as patched:
        one_by_one(patched)
        resumed = play(tmp_path / "run")
        assert resumed == play(tmp_path / "whole")


def test_a_run_of_an_earlier_version_stored_no_decisions(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(
            start_checks, "describe_decisions", lambda prepared, schedule: None
        )
        play(tmp_path, rounds=2)
    one_by_one(monkeypatch)
    play(tmp_path)


def test_models_are_not_taken_out_of_a_run_that_decided_otherwise(half, monkeypatch):
    folder = half()
    one_by_one(monkeypatch)
    with expect_refusal(r"one after the other now, .* --out or --fresh"):
        loading.load_run(folder, {"tiny:blobs"}).model(client=0)
