"""Noise on the sum of clipped updates, and private runs."""

from functools import partial

import numpy as np
import playing
import pytest
import tiny
import torch
from in_threads import on_ranks
from playing import play_on, prepare_on, run_table
from refusals import expect_refusal
from whole_runs import PART, UNIFORM, is_the_same_elsewhere, play_alone

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Privacy
from hpcfl.simulation import dry_round, preflight
from hpcfl.trained import loading
from hpcfl.updates.accounting import Guarantee
from hpcfl.updates.base import Context
from hpcfl.updates.privacy import ClientPrivacy, count_most_rounds

CLIENT = {"unit": "client"}


def make(sigma=1.0, size=4.0, **keys):
    """Return the privacy of ``size`` clients out of 40 with clip 2."""
    guarantee = Guarantee("poisson", 40, size, "rdp", 1e-5)
    section = Privacy(**CLIENT, clip=2.0, **keys)
    return ClientPrivacy(section, sigma, guarantee, 5, False, 10)


def test_the_noise_is_split_between_model_and_count():
    adaptive = make(size=100.0, adaptive_clip=True)
    assert adaptive.model_sigma == pytest.approx(1.005038, abs=1e-6)
    assert make().model_sigma == 1


def test_the_noise_of_a_round_is_keyed_and_has_its_deviation():
    """The deviation is σC/4 in each number of a mean over the expected four clients."""
    privacy, zeros = make(sigma=1.5), torch.zeros(10_000)
    one, same, other = (privacy.release(zeros, 3, 2.0, round) for round in (1, 1, 2))
    deviation = 1.5 * 2 / 4
    assert torch.equal(one, same)
    for noise in (one, other):
        assert abs(noise.mean()) < 4 * deviation / 100
        assert noise.std() == pytest.approx(deviation, rel=0.03)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.04


@pytest.mark.parametrize(
    ("clip", "expected", "following"),
    [
        (2.5, 4.0, 2.5),
        (3.5, 4.0, 3.329303),
        (0.5, 4.0, 0.552585),
        (3.5, 5.0, 3.362763),
    ],
)
def test_the_server_stores_the_next_clip(clip, expected, following):
    """Updates have the norms 1, 2, 3, 4, without noise."""
    privacy = make(sigma=0.0, size=expected, adaptive_clip=True)
    server = privacy.make_server_state(40)
    server["update.clip"] = torch.tensor([clip, 9.0]).double()
    updates = torch.diag(torch.arange(1.0, 5))
    _, norms, _ = privacy.clip(updates, clip, Context(5, 1, np.arange(4), 40))
    below = (norms <= clip).double().mean().item()
    privacy.remember(server, np.arange(4), below, 1)
    assert server["update.clip"].tolist() == pytest.approx([following, clip], abs=1e-6)


def test_the_noise_on_the_number_below_the_clip_has_its_deviation():
    """σ_b = 100/20 = 5, and C changes by the factor exp(−0.2 · noise/100)."""
    privacy = make(size=100.0, adaptive_clip=True)
    clips = []
    for round in range(2000):
        server = privacy.make_server_state(40) | {"update.clip": torch.ones(2)}
        privacy.remember(server, np.arange(4), 0.5, round)
        clips.append(float(server["update.clip"][0]))
    noise = -500 * np.log(clips)
    assert abs(noise.mean()) < 4 * 5 / 2000**0.5
    assert noise.std() == pytest.approx(5, rel=0.07)


def test_a_sum_is_divided_by_the_expected_cohort():
    mean = torch.tensor([4.0])
    assert make(sigma=0.0).release(mean, 3, 2.0, 1).tolist() == [3]
    assert make(local=True).release(mean, 3, 2.0, 1).tolist() == [3]


def test_local_noise_is_each_clients_own():
    context = Context(5, 1, np.array([2, 7]), 40)
    privacy, zeros = make(local=True), torch.zeros(2, 5000)
    noise, norms, _ = privacy.clip(zeros, 2.0, context)
    assert norms.tolist() == [0, 0]
    assert noise.std(dim=1).tolist() == pytest.approx([2, 2], rel=0.05)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.06
    of_last = context.select(np.array([False, True]))
    alone, _, _ = privacy.clip(zeros[1:], 2.0, of_last)
    assert torch.equal(alone[0], noise[1])


def test_the_largest_number_of_rounds_of_one_client():
    cohorts = [np.array([0, 2]), np.array([2]), np.zeros(0, np.int64)]
    assert count_most_rounds(map(np.copy, cohorts)) == 2
    assert count_most_rounds(map(np.copy, [])) == 0


@pytest.mark.slow
def test_privacy_without_clip_and_noise_keeps_the_bits(tmp_path):
    plain = play_alone(tmp_path / "plain", UNIFORM)
    table = tiny.table("fedavg", privacy=CLIENT)
    same, private = is_the_same_elsewhere(tmp_path, table)
    assert same and private.digest == plain.digest
    assert "privacy/epsilon" not in private.values


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedper", "ditto", "mr-mtl", "scaffold"])
def test_a_private_run_is_the_same_on_any_number_of_ranks_and_resumed(tmp_path, method):
    privacy = {**CLIENT, "clip": 0.2, "noise": 0.15, "adaptive_clip": True}
    table = tiny.table(method, privacy=privacy, participation=PART)
    same, alone = is_the_same_elsewhere(tmp_path, table)
    assert same
    clips = alone.values["privacy/clip"]
    assert clips[0] == pytest.approx(0.2) and len(set(clips[:3].tolist())) == 3
    assert (np.diff(alone.values["privacy/epsilon"][:3]) > 0).all()
    assert 0 <= alone.values["recorded/clipped"][0] <= 1


def test_a_method_without_uploads_costs_nothing(tmp_path):
    privacy = {**CLIENT, "clip": 1.0, "noise": 1.0}
    played = play_alone(tmp_path, "local", privacy=privacy, rounds=1)
    assert played.values["privacy/epsilon"][0] == 0


def test_local_noise_counts_the_uploads_of_each_client(tmp_path):
    """Two of five clients take part in each of three rounds."""
    privacy = {**CLIENT, "clip": 1.0, "noise": 8.0, "local": True}
    part = {"fraction": 0.4}
    played = play_alone(tmp_path, "fedavg", privacy=privacy, participation=part)
    counts = played.server["update.releases"]
    assert counts.sum() == 6
    (overlay,) = played.prepared.hooks.overlays
    expected = overlay.privacy.guarantee.compute_epsilon(8.0, int(counts.max()))
    assert played.values["privacy/epsilon"][2] == expected


def test_local_noise_counts_the_uploads_of_rounds_that_the_rule_skips(tmp_path):
    """The server has these uploads although it does not combine them."""
    privacy = {**CLIENT, "clip": 1.0, "noise": 8.0, "local": True}
    sections = {"participation": {"dropout": 0.7}, "rounds": 2}
    rule = {"rule": "own_updates:Largest", "least": 4}
    played = play_alone(tmp_path, privacy=privacy, aggregation=rule, **sections)
    assert played.values["aggregation/skipped"][1] == 2
    uploads = sum(len(played.schedule.get_cohort(round)) for round in (1, 2))
    assert played.server["update.releases"].sum() == uploads
    assert played.values["privacy/epsilon"][1] > 0


def test_an_update_with_a_clipped_layer_counts_as_clipped(tmp_path):
    """All norms are below the clip, but not those of all layers."""
    shares = []
    for place in ("update", "layer"):
        privacy = {**CLIENT, "clip": 0.5, "clip_per": place}
        played = play_alone(tmp_path / place, rounds=1, privacy=privacy)
        shares.append(played.values["recorded/clipped"][0])
    assert shares[0] == 0 < shares[1]


def test_a_round_moves_the_model_by_at_most_the_clip(tmp_path):
    privacy = {**CLIENT, "clip": 0.01}
    played = play_alone(tmp_path, "fedavg", privacy=privacy, rounds=1)
    moved = played.server["model"] - played.prepared.setup.initial()
    assert 0.001 < moved.norm() <= 0.01 * 1.0001
    assert played.values["recorded/clipped"][0] == 1


def test_an_empty_cohort_gets_noise_alone(tmp_path, monkeypatch):
    """The cohorts are [], [3], [], [], [1]. Only the preflight shows the clients'
    uploads.
    """

    def prepare_and_try(communicator, table):
        return preflight.run(prepare_on(communicator, table), communicator)

    monkeypatch.setattr(playing, "prepare_on", prepare_and_try)
    table = tiny.table(
        "mr-mtl",
        privacy={**CLIENT, "clip": 1.0, "noise": 0.5},
        participation={"scheme": "poisson", "fraction": 0.1},
        rounds=5,
    )
    first = play_on(OneProcess(), tmp_path / "first", {**table, "rounds": 1})
    assert not len(first.schedule.get_cohort(1))
    (overlay,) = first.prepared.hooks.overlays
    before = first.prepared.setup.initial()
    noise = overlay.privacy.release(torch.zeros_like(before), 0, 1.0, 1)
    moved = first.server["model"] - before
    # w̄ changes by the expected share of clients, half a client of five
    torch.testing.assert_close(moved, (0.1 * noise).float(), rtol=1e-4, atol=1e-6)
    one, three = (
        on_ranks(size, partial(play_on, folder=tmp_path / f"{size}", table=table))
        for size in (1, 3)
    )
    assert one.digest == three.digest


def test_a_server_that_reads_the_cohort_is_refused(tmp_path, monkeypatch):
    """It is refused before round 1, also if the trial has fewer clients."""
    monkeypatch.setattr(dry_round, "FLOATS", 1)
    table = tiny.table("own_updates:Counting", privacy={**CLIENT, "clip": 1.0})
    with expect_refusal(r"reads cohort\.ids.*\[privacy\]"):
        run_table(table, tmp_path)


@pytest.mark.slow
def test_a_target_is_spent_after_the_rounds_of_the_file(tmp_path):
    sections = {
        "privacy": {**CLIENT, "clip": 1.0, "epsilon": 8.0},
        "participation": {"scheme": "poisson", "fraction": 0.5},
    }
    run_table(tiny.table("fedavg", **sections), tmp_path)
    run = loading.load_run(tmp_path, {"tiny:Counts", "tiny:blobs"})
    assert run.results.get_series("privacy/epsilon")[2] == pytest.approx(8.0, abs=1e-3)
    assert "the calibrated noise multiplier is" in run.results.header["decisions"]
    with pytest.raises(UserError, match=r"privacy\.epsilon = 8 .* 5 rounds .* ε = "):
        run_table(tiny.table("fedavg", **sections, rounds=5), tmp_path)


def test_privacy_loss_distributions_give_epsilon_after_the_last_round_alone():
    def measure(privacy, round):
        return privacy.measure({"update.releases": torch.tensor([round])}, round)

    assert "privacy/epsilon" not in measure(make(accountant="pld"), 3)
    assert "privacy/epsilon" not in measure(make(sigma=0.0), 10)
    loose = measure(make(), 3)
    assert loose["privacy/clip"] == 2 and loose["privacy/noise"] == 2
    assert loose["privacy/epsilon"] == make().guarantee.compute_epsilon(1.0, 3)


def test_check_describes_the_guarantee():
    lines = " ".join(make().describe(10, lambda number: np.arange(4)))
    for words in ("ε = ", "Poisson with q = 0.1", "clip 2", "joint privacy", "one run"):
        assert words in lines
    local = make(sigma=4.0, local=True)
    cohorts = [np.array([0]), np.array([0, 1])]
    assert "after 2 rounds" in local.describe(2, lambda number: cohorts[number - 1])[0]
