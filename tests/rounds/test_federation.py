"""Who takes part in a round (protocols.md E2), and what begins anew in each
(methods-1.md §2).
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from hpcfl.errors import RankFailure, RunFailure
from hpcfl.experiment import config
from hpcfl.fleet.training import Task
from hpcfl.rounds.federation import Federation
from hpcfl.rows import mixing


def cohorts(rounds, **keys):
    """The cohorts of rounds 1, 2, … of an experiment with 20 clients."""
    table = {
        "method": {"name": "fedavg"},
        "partition": {"clients": 20},
        "seed": 0,
        **keys,
    }
    federation = SimpleNamespace(prepared=SimpleNamespace(config=config.parse(table)))
    return [
        Federation.select(federation, round).tolist() for round in range(1, rounds + 1)
    ]


@pytest.mark.parametrize(
    ("fraction", "clients", "size"),
    [(1.0, 20, 20), (0.5, 5, 2), (0.3, 10, 3), (0.29, 100, 29), (0.01, 20, 1)],
)
def test_e2_a_cohort_has_the_floor_of_its_share_but_one_client_at_least(
    fraction, clients, size
):
    """0.29 · 100 is 28.999… in floating point."""
    [cohort] = cohorts(
        1, participation={"fraction": fraction}, partition={"clients": clients}
    )
    assert len(cohort) == len(set(cohort)) == size
    assert cohort == sorted(cohort) and cohort[0] >= 0 and cohort[-1] < clients


def test_e2_cohorts_are_uniform_and_follow_seed_and_round():
    """FedNH's loop for FedBABU keys them by the round alone, so that repeated runs
    share one schedule.
    """
    half = {"participation": {"fraction": 0.25}}
    drawn = cohorts(2000, **half)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)
    assert drawn[:50] == cohorts(50, **half) != cohorts(50, **half, seed=1)
    assert len({tuple(cohort) for cohort in drawn[:50]}) > 45


def test_drop_outs_are_lost_of_the_drawn_ones_and_one_always_stays():
    drawn, left = (
        cohorts(2000, participation={"fraction": 0.5, "dropout": share})
        for share in (0.0, 0.3)
    )
    assert all(
        set(some) <= set(whole) and some == sorted(some) and some
        for some, whole in zip(left, drawn, strict=True)
    )
    lost = np.array(
        [len(whole) - len(some) for some, whole in zip(left, drawn, strict=True)]
    )
    assert abs(lost.mean() - 3) < 5 * np.sqrt(10 * 0.3 * 0.7 / 2000)
    assert left[:50] == cohorts(50, participation={"fraction": 0.5, "dropout": 0.3})
    alone = cohorts(50, participation={"fraction": 0.01, "dropout": 0.99})
    assert alone == cohorts(50, participation={"fraction": 0.01})


def paces(rounds, share, **keys):
    """Of each of these rounds the pace of its cohort, of 20 clients a half."""
    table = {
        "method": {"name": "fedavg"},
        "partition": {"clients": 20},
        "training": {"epochs": 4},
        **keys,
        "participation": {"fraction": 0.5, "stragglers": share},
    }
    prepared = SimpleNamespace(
        config=config.parse(table), setup=SimpleNamespace(clients=20)
    )
    federation = SimpleNamespace(prepared=prepared)
    federation.select = lambda round: Federation.select(federation, round)
    return [
        Federation.pace(federation, round, federation.select(round)) for round in rounds
    ], federation


def test_a_share_of_the_cohort_straggles_by_any_number_of_epochs():
    """As in FedProx's experiments: of ten clients nine, each for 1 … 4 epochs alike."""
    found, _ = paces(range(1, 401), 0.9)
    lasts = np.stack([Task(1, None, [], 4, pace).lasts(range(10)) for pace in found])
    assert all((pace < 1).sum() == 9 for pace in found)
    counts = np.bincount(lasts[np.stack(found) < 1], minlength=5)
    assert counts[0] == 0 and np.abs(counts[1:] - 900).max() < 5 * np.sqrt(
        3600 * 0.25 * 0.75
    )
    assert (lasts[np.stack(found) == 1] == 4).all()


def test_who_straggles_follows_seed_round_and_client_alone():
    [first, second], federation = paces((1, 2), 0.5)
    assert not np.array_equal(first, second) and not np.array_equal(
        first, paces((1,), 0.5, seed=1)[0][0]
    )
    cohort = federation.select(1)
    assert [
        Federation.pace(federation, 1, cohort[i : i + 1])[0] for i in range(10)
    ] == first.tolist()
    assert paces((1,), 0.0)[0] == [None]


@pytest.mark.slow
def test_stragglers_train_less_and_count_all_the_same(federate):
    """A client that does one or two of two epochs is FedAvg's with that many."""

    def digest(seed, epochs, **keys):
        return federate(
            "fedavg",
            [[8, 3, 0, 0]],
            rounds=1,
            seed=seed,
            training={"epochs": epochs},
            participation=keys,
        ).digest

    assert {
        digest(seed, 2, stragglers=1.0) == digest(seed, 1) for seed in range(4)
    } == {True, False}


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_the_state_of_optimisers_is_reset_every_round(federate, optimizer):
    """With one full batch a round momentum never acts, and Adam's every step has the
    length of its first, lr.
    """
    whole = {"batch_size": 100, "lr": 0.01}
    played = federate("local", rounds=4, training={**whole, **optimizer})
    moved = (
        played.clients["model"]
        - federate("local", rounds=3, training={**whole, **optimizer}).clients["model"]
    )
    if "momentum" in optimizer:
        assert (
            played.clients["model"]
            == federate("local", rounds=4, training=whole).clients["model"]
        ).all()
    else:
        trained = moved != 0
        np.testing.assert_allclose(moved[trained].abs(), 0.01, rtol=0.05)


def test_a_rank_without_room_for_what_the_server_sends_ends_the_job(
    federate, monkeypatch
):
    """The others know nothing of it, so all ranks cannot end together."""

    def full(*arguments):
        raise RunFailure("/tmp: No space left on device")

    monkeypatch.setattr(mixing, "combine", full)
    with pytest.raises(
        RankFailure, match="round 2, what the server sends: /tmp: No space left"
    ):
        federate({"name": "cwfedavg", "layers": "all"}, tiny.FEW * 4)
