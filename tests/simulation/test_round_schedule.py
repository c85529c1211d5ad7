"""Federations in which who takes part depends on the losses that clients told."""

import numpy as np
import pytest
import tiny

import hpcfl
from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.selection.base import Selection
from hpcfl.storage.manifest import latest

BY_LOSS = {"select": "power-of-choice", "fraction": 0.4}
OWN = ["tiny:blobs", "tiny:Counts"]  # of a user, which a run's folder only names


class InTurn(Selection):
    """Clients take turns, who is slow and who is fast."""

    def choose(self, known, count):
        return np.roll(known.ids, (1 - known.round) * count)[:count]


def cohorts(played):
    """The clients of each round that trained."""
    losses = played.values["clients/train_loss"][:-1]
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in losses]


@pytest.mark.slow
@pytest.mark.parametrize("time", [{"mode": "none"}, {"mode": "synchronous"}])
def test_as_many_candidates_as_chosen_change_no_bit(federate, time):
    keys = {
        "fraction": 0.4,
        "dropout": 0.3,
        "stragglers": 0.5,
    }
    training = {"epochs": 2}
    plain = federate("fedavg", participation=keys, training=training)
    chosen = {
        **keys,
        "select": "power-of-choice",
        "candidates": 1.0,
    }
    other = federate(
        "fedavg",
        participation=chosen,
        training=training,
        time=time,
    )
    assert other.digest == plain.digest
    # one float more is sent, the loss
    more = other.values["clients/floats_up"] - plain.values["clients/floats_up"]
    assert (more[np.isfinite(more)] == 1).all() and np.isfinite(more).any()


def test_power_of_choice_by_the_losses_that_were_told(federate):
    """All five clients are candidates and two are chosen: in two rounds four who never
    told, in the third the fifth and the one with the largest loss of them.
    """
    played = federate("fedavg", participation={**BY_LOSS, "candidates": 3.0})
    first, second, third = cohorts(played)
    assert len({*first, *second}) == 4
    losses = np.nan_to_num(played.values["clients/data_loss"][:2]).max(axis=0)
    (fifth,) = set(range(5)) - {*first, *second}
    assert set(third) == {fifth, losses.argmax()}


def test_who_has_diverged_told_nothing_worth_asking_for(federate):
    keys = {"on_divergence": "exclude", "lr": 1e30}
    participation = {**BY_LOSS, "candidates": 3.0}
    played = federate(
        "fedavg",
        participation=participation,
        training=keys,
        rounds=2,
    )
    diverged = played.values["clients/diverged"][:2]
    told = played.schedule.reports
    assert (diverged == 1).sum() == 4 and told.times.max() == 1
    assert told.losses[told.heard > 0].tolist() == [0] * 4


@pytest.mark.slow
def test_a_run_goes_on_with_the_clients_that_it_would_have_chosen(tmp_path):
    participation = {
        **BY_LOSS,
        "candidates": 3.0,
    }  # from round 4 on losses alone decide
    keys = {"participation": participation, "checkpoint": {"every": 1}}
    digests, runs = [], []
    for name, stops in (("calm", [6]), ("stopped", [3, 6])):
        for rounds in stops:
            table = tiny.table("fedavg", rounds=rounds, **keys)
            run(config.parse(table), tmp_path / name, OneProcess())
        digests.append(latest(tmp_path / name / "checkpoints").digest)
        runs.append(hpcfl.load(tmp_path / name, own=OWN))
    assert digests[0] == digests[1]
    calm, stopped = (run.results.values for run in runs)
    for name, series in calm.items():
        if "seconds/" not in name and "bytes" not in name:
            np.testing.assert_array_equal(stopped[name], series, name)
    # the last round is played again for a client that trained in it
    trained = np.isfinite(stopped["clients/train_loss"][5])
    client = int(np.flatnonzero(trained)[0])
    hits = runs[1].confusion(client, "post", 6)
    assert hits.trace() == stopped["clients/post/correct"][5, client]


@pytest.mark.slow
def test_another_selection_than_the_run_began_with_is_refused(tmp_path, monkeypatch):
    """A file of a user that was changed, which no configuration shows."""
    keys = {"participation": BY_LOSS, "checkpoint": {"every": 1}}
    run(config.parse(tiny.table("fedavg", rounds=2, **keys)), tmp_path, OneProcess())
    longer = config.parse(tiny.table("fedavg", rounds=3, **keys))
    kind = type(longer.participation)
    monkeypatch.setattr(kind, "choose", lambda self, known, count: known.ids[-count:])
    with pytest.raises(UserError, match="in round 1 the run had chosen others"):
        run(longer, tmp_path, OneProcess())


@pytest.mark.parametrize("time", [{"mode": "none"}, {"mode": "synchronous"}])
def test_a_selection_of_a_user_in_one_file(federate, time):
    keys = {"select": "test_round_schedule:InTurn", "fraction": 0.4}
    played = federate("fedavg", participation=keys, time=time)
    assert cohorts(played) == [[0, 1], [2, 3], [0, 4]]
    assert ("time/seconds" in played.values) == (time["mode"] != "none")


@pytest.mark.parametrize(
    ("participation", "time", "line"),
    [
        ({"select": "oort"}, "none", "goes by how long clients are at work; set time"),
        ({"select": "fastest"}, "none", "goes by how long clients are at work"),
        ({"select": "oort"}, "asynchronous", "goes by the losses that clients tell"),
        ({"select": "ort"}, "none", "unknown; did you mean 'oort'"),
        ({"candidates": 2.0}, "none", "unknown key 'participation.candidates'"),
        ({"select": "tiny:zero_row"}, "none", "expected a subclass of .*Selection"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(participation, time, line):
    table = tiny.table("fedavg", participation=participation, time={"mode": time})
    with pytest.raises(UserError, match=line):
        config.parse(table)
