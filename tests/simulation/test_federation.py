"""State that is reset in each round (methods-1.md §2), a failing rank, and the best
round.
"""

import contextlib
import io
import json
import math

import pytest
import tiny
import torch
from playing import run_alone

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RankFailure, RunFailure
from hpcfl.experiment.plugins import find_own_names
from hpcfl.files import output
from hpcfl.rows import mixing
from hpcfl.scores.metric_names import Measure
from hpcfl.simulation.federation import BestRound
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.manifest import find_latest
from hpcfl.trained import loading
from hpcfl.trained.models import predict_classes


def test_the_state_of_optimisers_is_reset_every_round(federate):
    """With one full batch per round momentum has no effect."""
    whole = {"batch_size": 100, "lr": 0.01}
    played = federate("local", training={**whole, "momentum": 0.9})
    plain = federate("local", training=whole)
    assert torch.equal(played.clients["model"], plain.clients["model"])


def test_a_full_disk_on_one_rank_ends_the_job(federate, monkeypatch):
    """The other ranks have no information about it, so the ranks cannot end together."""

    def full(*arguments):
        raise RunFailure("/tmp: No space left on device")

    monkeypatch.setattr(mixing, "combine", full)
    with pytest.raises(RankFailure, match=r"^round 2, .*: /tmp: No space left"):
        federate({"name": "cwfedavg", "layers": "all"}, tiny.FEW * 4)


def play(folder, method, rounds=8, every=3, best=True, lr=0.3):
    """Run a federation whose test loss decreases and, with DiversiFed, increases after
    round 3.
    """
    table = tiny.table(
        method,
        rounds=rounds,
        checkpoint={"every": every, "best": best},
        training={"lr": lr},
        evaluation={"metric": "loss"},
    )
    with contextlib.redirect_stdout(io.StringIO()):
        run_alone(table, folder)
    return loading.load_run(folder, find_own_names(table))


def best_state(run):
    return find_latest(run.folder / "checkpoints").best


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return an undisturbed run of eight rounds, which must not be changed."""
    return play(tmp_path_factory.mktemp("calm") / "run", "diversifed")


def models_are_those_that_were_scored(found):
    best = found.summary.best["round"]
    assert 2 < best <= 8 and best_state(found).round == best - 1
    for one in found.models.of_clients(range(5), at="best"):
        x, y = found.models.samples(one.clients)
        assert (
            float((predict_classes(one.module, x) == y).double().mean()) == one.recorded
        )
        assert one.round == best


@pytest.mark.slow
@pytest.mark.parametrize("method, lr", [("fedcac", 0.3), ("cwfedavg", 0.8)])
def test_models_of_the_best_round_are_those_that_were_scored(tmp_path, method, lr):
    models_are_those_that_were_scored(play(tmp_path / "run", method, lr=lr))


@pytest.mark.slow
def test_best_state_is_that_of_a_run_that_ends_before_that_round(calm, tmp_path):
    models_are_those_that_were_scored(calm)
    kept = best_state(calm)
    assert kept.round == 2  # neither of the two last checkpoints
    short = play(tmp_path / "short", "diversifed", rounds=kept.round, best=False)
    assert short.summary.digest == kept.digest
    assert kept.meta["number"] == calm.summary.best["post"]


@pytest.mark.slow
@pytest.mark.parametrize("done", [1, 2, 3, 5])
def test_a_continued_run_has_the_same_best_round(calm, tmp_path, done):
    """From any checkpoint, before and after the best round."""
    play(tmp_path / "run", "diversifed", rounds=done, every=1)
    (tmp_path / "run" / "metrics.h5").unlink()  # only the checkpoint contains it
    assert best_state(play(tmp_path / "run", "diversifed", every=2)) == best_state(calm)


@pytest.mark.slow
def test_no_best_state_is_kept_without_the_option(tmp_path):
    found = play(tmp_path / "run", "diversifed", rounds=4, best=False)
    assert best_state(found) is None
    expected = r"round 3 .* 1, 4, 5; checkpoint\.best = true"
    with pytest.raises(Exception, match=expected):
        found.model(client=0, at="best")


@pytest.mark.slow
def test_a_run_continues_without_a_damaged_best_state(calm, tmp_path):
    found = play(tmp_path / "run", "diversifed", rounds=7)
    newest = find_latest(found.folder / "checkpoints")
    [server] = [shard.name for shard in newest.best.files if shard.ids is None]
    (found.folder / "checkpoints" / server).write_bytes(b"damaged")
    again = play(found.folder, "diversifed")
    assert again.summary.digest == calm.summary.digest
    assert best_state(again) is None  # none of the further rounds is better


def test_the_first_of_equally_good_rounds_is_the_best():
    store = ClientStore([0], {"x": torch.zeros(1)})
    watch = BestRound("pre", Measure("loss", "mean", "loss", "", "down"), None)
    for round, number in enumerate([math.nan, 2.0, 2.0, 1.0], 1):
        watch.remember(round, None, store)
        watch.judge(OneProcess(), {"pre/loss": number})
        if round == 3:
            assert watch.take().round == 1
    assert watch.take().round == 3 and watch.take() is None


def test_the_supervisor_receives_the_seconds_of_rounds_and_checkpoints(
    federate, monkeypatch, tmp_path
):
    monkeypatch.setenv(output.PACE, str(tmp_path / "pace"))
    federate("fedavg", checkpoint={"every": 1})
    pace = json.loads((tmp_path / "pace").read_text())
    assert pace.keys() == {"round", "checkpoint"} and min(pace.values()) > 0
