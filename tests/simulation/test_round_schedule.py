"""Clients that take part in a round, also if reported losses determine them
(protocols.md E2).
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from playing import run_alone
from refusals import expect_refusal

from hpcfl.clients.training import Task
from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.selection.base import Selection
from hpcfl.simulation.round_schedule import Draws, RoundSchedule

BY_LOSS = {"select": "power-of-choice", "fraction": 0.4}
ALL_BY_LOSS = {**BY_LOSS, "candidates": 3.0}  # all clients are candidates


class InTurn(Selection):
    """A selection in which clients take turns, independent of their speed."""

    def choose(self, known, count):
        return np.roll(known.ids, (1 - known.round) * count)[:count]


def trained_cohorts(played):
    """Return the clients that trained in each round."""
    losses = played.values["clients/train_loss"][:-1]
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in losses]


@pytest.mark.slow
@pytest.mark.parametrize("time", [{"mode": "none"}, {"mode": "synchronous"}])
def test_as_many_candidates_as_chosen_change_no_bit(federate, time):
    keys = {"fraction": 0.4, "dropout": 0.3, "stragglers": 0.5}
    training = {"epochs": 2}
    plain = federate("fedavg", participation=keys, training=training)
    chosen = {**keys, "select": "power-of-choice", "candidates": 1.0}
    other = federate("fedavg", participation=chosen, training=training, time=time)
    assert other.digest == plain.digest
    # one more float is sent, the loss
    more = other.values["clients/floats_up"] - plain.values["clients/floats_up"]
    assert (more[np.isfinite(more)] == 1).all() and np.isfinite(more).any()


def test_power_of_choice_selects_by_reported_losses(federate):
    """All five clients are candidates and two are selected: in the first two rounds
    four without a report, in the third the fifth client and the one with the largest
    loss.
    """
    played = federate("fedavg", participation=ALL_BY_LOSS)
    first, second, third = trained_cohorts(played)
    assert len({*first, *second}) == 4
    losses = np.nan_to_num(played.values["clients/data_loss"][:2]).max(axis=0)
    (fifth,) = set(range(5)) - {*first, *second}
    assert set(third) == {fifth, losses.argmax()}


def test_losses_of_diverged_clients_count_as_zero(federate):
    keys = {"on_divergence": "exclude", "lr": 1e30}
    played = federate("fedavg", participation=ALL_BY_LOSS, training=keys, rounds=2)
    diverged = played.values["clients/diverged"][:2]
    reports = played.schedule.reports
    assert (diverged == 1).sum() == 4 and reports.times.max() == 1
    assert reports.losses[reports.last_rounds > 0].tolist() == [0] * 4


@pytest.mark.slow
def test_a_client_selected_by_loss_can_be_replayed(played):
    # from round 4 on only losses determine the selection
    run = played("fedavg", participation=ALL_BY_LOSS, rounds=6)
    values = run.results.values
    trained = np.isfinite(values["clients/train_loss"][5])
    client = int(np.flatnonzero(trained)[0])
    hits = run.confusion(client, "post", 6)
    assert hits.trace() == values["clients/post/correct"][5, client]


@pytest.mark.slow
def test_another_selection_than_the_run_began_with_is_refused(tmp_path, monkeypatch):
    """The user's file was changed, which the configuration does not show."""
    keys = {"participation": BY_LOSS, "checkpoint": {"every": 1}}
    run_alone(tiny.table("fedavg", rounds=2, **keys), tmp_path)
    longer = tiny.parse("fedavg", rounds=3, **keys)
    kind = type(longer.participation)
    monkeypatch.setattr(kind, "choose", lambda self, known, count: known.ids[-count:])
    with expect_refusal(r"participation\.select: in round 1 "):
        run(longer, tmp_path, OneProcess())


@pytest.mark.parametrize("time", [{"mode": "none"}, {"mode": "synchronous"}])
def test_a_selection_of_a_user_in_one_file(federate, time):
    keys = {"select": "test_round_schedule:InTurn", "fraction": 0.4}
    played = federate("fedavg", participation=keys, time=time)
    assert trained_cohorts(played) == [[0, 1], [2, 3], [0, 4]]
    assert ("time/seconds" in played.values) == (time["mode"] != "none")


@pytest.mark.parametrize(
    ("participation", "time", "line"),
    [
        ({"select": "oort"}, "none", "'oort': .*time.mode, .*'synchronous'"),
        ({"select": "oort"}, "asynchronous", "time.mode = 'asynch.* .*'fastest'"),
        ({"candidates": 2.0}, "none", "'participation.candidates'"),
        ({"select": "tiny:zero_head"}, "none", "select = 'tiny:zero_head' .*Selection"),
    ],
)
def test_a_selection_without_its_information_is_refused(participation, time, line):
    table = tiny.table("fedavg", participation=participation, time={"mode": time})
    with expect_refusal(line):
        config.parse(table)


def schedule_of(experiment):
    """Return the schedule of an experiment with uniform selection."""
    clients = experiment.partition.clients
    draws = Draws(experiment.participation, clients, experiment.seed)
    return RoundSchedule(SimpleNamespace(config=experiment), draws)


def experiment_of(**keys):
    """Return an experiment with 20 clients."""
    table = {"method": {"name": "fedavg"}, "partition": {"clients": 20}, "seed": 0}
    return config.parse(table | keys)


def cohorts(rounds, **keys):
    """Return the cohorts of rounds 1, 2, … of an experiment."""
    schedule = schedule_of(experiment_of(**keys))
    return [schedule.get_cohort(number).tolist() for number in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("fraction", "clients", "size"),
    [(1.0, 20, 20), (0.5, 5, 2), (0.3, 10, 3), (0.29, 100, 29), (0.01, 20, 1)],
)
def test_a_cohort_has_the_floor_of_its_share_but_one_client_at_least(
    fraction, clients, size
):
    """0.29 · 100 is 28.999… in floating point."""
    [cohort] = cohorts(
        1, participation={"fraction": fraction}, partition={"clients": clients}
    )
    assert len(cohort) == len(set(cohort)) == size
    assert cohort == sorted(cohort) and cohort[0] >= 0 and cohort[-1] < clients


def test_cohorts_are_uniform_and_follow_seed_and_round():
    """FedNH's loop for FedBABU keys them only by the round, so repeated runs have the
    same schedule.
    """
    half = {"participation": {"fraction": 0.25}}
    drawn = cohorts(2000, **half)
    counts = np.bincount(np.concatenate(drawn), minlength=20)
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)
    assert drawn[:50] == cohorts(50, **half) != cohorts(50, **half, seed=1)
    assert len({tuple(cohort) for cohort in drawn[:50]}) > 45


@pytest.mark.slow
def test_clients_drop_out_of_a_cohort_and_one_always_stays():
    drawn, left = (
        cohorts(2000, participation={"fraction": 0.5, "dropout": share})
        for share in (0.0, 0.3)
    )
    for some, whole in zip(left, drawn, strict=True):
        assert some and set(some) <= set(whole) and some == sorted(some)
    lost = np.mean([*map(len, drawn)]) - np.mean([*map(len, left)])
    assert abs(lost - 3) < 5 * np.sqrt(10 * 0.3 * 0.7 / 2000)
    assert left[:50] == cohorts(50, participation={"fraction": 0.5, "dropout": 0.3})
    alone = cohorts(50, participation={"fraction": 0.01, "dropout": 0.99})
    assert alone == cohorts(50, participation={"fraction": 0.01})


def stragglers(share, **keys):
    """Return an experiment in which half of the clients train in a round."""
    participation = {"fraction": 0.5, "stragglers": share}
    return experiment_of(training={"epochs": 4}, participation=participation, **keys)


def shares_of_cohort(experiment, number):
    """Return the share of the epochs that each client of a round's cohort trains."""
    return schedule_of(experiment).plan(number).epoch_shares


def test_a_share_of_the_cohort_straggles_by_any_number_of_epochs():
    """As in FedProx's experiments: nine of ten clients, each for 1 … 4 epochs with
    equal probability.
    """
    experiment = stragglers(0.9)
    lasts = []
    for number in range(1, 401):
        pace = shares_of_cohort(experiment, number)
        task = Task(0, 1, None, [], 4, pace)
        epochs = np.array([task.count_epochs(place) for place in range(10)])
        assert (pace < 1).sum() == 9 and (epochs[pace == 1] == 4).all()
        lasts.append(epochs[pace < 1])
    counts = np.bincount(np.concatenate(lasts), minlength=5)
    spread = 5 * np.sqrt(3600 * 0.25 * 0.75)
    assert counts[0] == 0 and np.abs(counts[1:] - 900).max() < spread


def test_stragglers_follow_seed_round_and_client_alone():
    experiment = stragglers(0.5)
    first, second = (shares_of_cohort(experiment, number) for number in (1, 2))
    other_seed = shares_of_cohort(stragglers(0.5, seed=1), 1)
    assert not np.array_equal(first, second) and not np.array_equal(first, other_seed)
    plan = schedule_of(experiment).plan(1)
    alone = [plan.select_epoch_shares(np.array([client]))[0] for client in plan.cohort]
    assert alone == first.tolist()
    assert shares_of_cohort(stragglers(0.0), 1) is None


@pytest.mark.slow
def test_stragglers_train_less_and_count_all_the_same(federate):
    """A client that trains one or two of two epochs equals FedAvg's client with as many
    epochs.
    """

    def digest(seed, epochs, **keys):
        return federate(
            "fedavg",
            tiny.COUNTS[:1],
            rounds=1,
            seed=seed,
            training={"epochs": epochs},
            participation=keys,
        ).digest

    assert {
        digest(seed, 2, stragglers=1.0) == digest(seed, 1) for seed in range(4)
    } == {True, False}


class Chosen(Selection):
    """A user's selection of given ids."""

    ids: list[int]

    def choose(self, known, count):
        return self.ids


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([0, 1, 2, 3], "4 clients, but at most 3"),
        ([6], ".* 0 … 5"),
        ([-1], ".* 0 … 5"),
        ([1, 5], "client 5"),
        ([1, 1], "a client more than once"),
        ([], "no client"),
    ],
)
def test_a_wrong_choice_of_a_selection_is_refused(ids, problem):
    draws = Draws(Chosen(select="mine:Chosen", ids=ids), 6, 4)
    candidates = np.array([1, 1, 1, 1, 1, 0], bool)
    words = rf"test_round_schedule\.py:.*select = 'mine:Chosen': chose {problem}"
    with expect_refusal(words):
        draws.choose(candidates, 3, (1,))


def test_a_selection_that_returns_no_list_of_ids():
    class Wrong(Selection):
        def choose(self, known, count):
            return known.candidates[:, None]

    with expect_refusal(r"'uniform': chose bool .*\(6, 1\)"):
        Draws(Wrong(), 6, 4).choose(np.ones(6, bool), 3, (1,))


def test_a_selection_that_draws_without_a_key_is_refused():
    class Shuffled(Selection):
        def choose(self, known, count):
            return np.random.permutation(known.ids)[:count]

    draws = Draws(Shuffled(select="mine:Shuffled"), 6, 4)
    with expect_refusal(r"participation\.select .*known\.random"):
        draws.choose(np.ones(6, bool), 3, (1,))
