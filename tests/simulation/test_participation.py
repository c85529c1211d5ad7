"""Who takes part in a round (protocols.md E2), and who does less of it."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.clients.training import Task
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.selection.base import Selection
from hpcfl.simulation.participation import Draws
from hpcfl.simulation.round_schedule import RoundSchedule


def schedule_of(experiment):
    """The schedule of an experiment whose clients are chosen uniformly."""
    clients = experiment.partition.clients
    draws = Draws(experiment.participation, clients, experiment.seed)
    return RoundSchedule(SimpleNamespace(config=experiment), draws)


def cohorts(rounds, **keys):
    """The cohorts of rounds 1, 2, … of an experiment with 20 clients."""
    table = {
        "method": {"name": "fedavg"},
        "partition": {"clients": 20},
        "seed": 0,
        **keys,
    }
    schedule = schedule_of(config.parse(table))
    return [schedule.cohort(number).tolist() for number in range(1, rounds + 1)]


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


@pytest.mark.slow
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


def stragglers(share, **keys):
    """An experiment with 20 clients of which a half trains in a round."""
    table = {
        "method": {"name": "fedavg"},
        "partition": {"clients": 20},
        "training": {"epochs": 4},
        **keys,
        "participation": {"fraction": 0.5, "stragglers": share},
    }
    return config.parse(table)


def shares_of_cohort(experiment, number):
    """What each client of a round's cohort does of its epochs."""
    return schedule_of(experiment).plan(number).shares


def test_a_share_of_the_cohort_straggles_by_any_number_of_epochs():
    """As in FedProx's experiments: of ten clients nine, each for 1 … 4 epochs alike."""
    experiment = stragglers(0.9)
    shares = [shares_of_cohort(experiment, number) for number in range(1, 401)]
    lasts = np.stack(
        [Task(1, None, [], 4, pace).epochs_of(range(10)) for pace in shares]
    )
    assert all((pace < 1).sum() == 9 for pace in shares)
    counts = np.bincount(lasts[np.stack(shares) < 1], minlength=5)
    assert counts[0] == 0 and np.abs(counts[1:] - 900).max() < 5 * np.sqrt(
        3600 * 0.25 * 0.75
    )
    assert (lasts[np.stack(shares) == 1] == 4).all()


def test_who_straggles_follows_seed_round_and_client_alone():
    experiment = stragglers(0.5)
    first, second = (shares_of_cohort(experiment, number) for number in (1, 2))
    other_seed = shares_of_cohort(stragglers(0.5, seed=1), 1)
    assert not np.array_equal(first, second) and not np.array_equal(first, other_seed)
    plan = schedule_of(experiment).plan(1)
    alone = [plan.pace(np.array([client]))[0] for client in plan.cohort]
    assert alone == first.tolist()
    assert shares_of_cohort(stragglers(0.0), 1) is None


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


class Chosen(Selection):
    """A user's own, which chooses what it is told to."""

    ids: list[int]

    def choose(self, known, count):
        return self.ids


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([0, 1, 2, 3], "4 clients, at most 3"),
        ([6], "a client that there is not, of 6"),
        ([-1], "a client that there is not"),
        ([1, 5], "client 5, who is not there"),
        ([1, 1], "a client more than once"),
        ([], "nobody"),
    ],
)
def test_what_a_selection_may_not_choose(ids, problem):
    draws = Draws(Chosen(select="mine:Chosen", ids=ids), 6, 4)
    candidates = np.array([1, 1, 1, 1, 1, 0], bool)
    with pytest.raises(
        UserError,
        match=f"test_participation.py:.*select = 'mine:Chosen': chose {problem}",
    ):
        draws.choose(candidates, 3, (1,))


def test_a_selection_that_returns_no_list_of_ids():
    class Wrong(Selection):
        def choose(self, known, count):
            return known.candidates[:, None]

    with pytest.raises(UserError, match=r"chose bool of shape \(6, 1\), not a list"):
        Draws(Wrong(), 6, 4).choose(np.ones(6, bool), 3, (1,))
