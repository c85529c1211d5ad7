"""Stages of a round: their order, seconds and errors, and collective ones."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Field, Mean, Mixture, Pool
from hpcfl.errors import RankFailure, RunFailure
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation.hooks import MessageError, check_message
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.round import LocalWork, Round, vote_to_continue
from hpcfl.simulation.round_schedule import make_untimed
from hpcfl.simulation.stages import (
    FINAL_SCORING,
    TRAINING,
    JoinedWork,
    Stage,
    conclude,
    play,
)
from hpcfl.storage.clients import ClientStore

EXCHANGES = (
    "bcast",
    "bcast_row",
    "scatter_rows",
    "allgather",
    "gather_rows",
    "allreduce_max_array",
    "reduce_sum",
)

POOL = Pool(torch.zeros(2, 4), torch.zeros(3, 1, dtype=torch.int64))


def rounds(communicator, method="ditto", vote=vote_to_continue, **sections):
    """Run round 1 of a federation on the tiny data and its final scoring, and return
    the stages of each.
    """
    experiment = tiny.parse(method, **sections)
    prepared = prepare(experiment, communicator)
    schedule = make_untimed(prepared, communicator)
    first = schedule.plan(1)
    final = schedule.plan_final(prepared.newcomer_ids)
    played = []
    for plan, stages in ((first, TRAINING), (final, FINAL_SCORING)):
        round = Round(
            plan, communicator, prepared, prepared.initial_server_state, vote=vote
        )
        played.append((round, stages))
    return played


class Stopwatch:
    """Phases that began, in order."""

    def __init__(self):
        self.begun = []

    def phase(self, name):
        self.begun.append(name)
        return contextlib.nullcontext()


def make_round():
    return SimpleNamespace(name="round 7", stopwatch=Stopwatch(), work=[])


def test_stages_run_in_order_and_observers_see_the_round_after_each():
    round, seen = make_round(), []
    stages = [
        Stage("add", "send", "adding", lambda round: round.work.append(1)),
        Stage("double", "train", "doubling", lambda round: round.work.append(2)),
    ]
    play(round, stages, [lambda stage, round: seen.append((stage, *round.work))])
    assert seen == [("add", 1), ("double", 1, 2)]
    assert round.stopwatch.begun == ["send", "train"]


class ChangesInSend(FedAvg):
    def send(self, server, audience):
        server["model"].add_(1)
        return super().send(server, audience)


class ChangesInAggregate(FedAvg):
    def aggregate(self, server, cohort, uplink):
        server["model"].lerp_(uplink["model"], 0.5)


@pytest.mark.parametrize("method", ["ChangesInSend", "ChangesInAggregate"])
def test_a_change_of_the_server_in_place_ends_a_round(method):
    round, stages = rounds(OneProcess(), f"test_stages:{method}")[0]
    with pytest.raises(RankFailure, match=r"^round 1, .*:ChangesIn.*server\['model'\]"):
        play(round, stages)


MEETINGS = "send", "collect", "upload", "newcomers"


def test_ranks_exchange_messages_only_in_certain_stages(monkeypatch):
    met = []
    alone = OneProcess()
    for name in EXCHANGES:
        exchange = getattr(alone, name)

        def exchanging(*arguments, exchange=exchange):
            met.append("")
            return exchange(*arguments)

        monkeypatch.setattr(alone, name, exchanging)
    counts = {"partition": {"clients": 4}, "newcomers": {"clients": 1}}
    for round, stages in rounds(alone, **counts):
        for stage in stages:
            met.clear()
            play(round, [stage])
            assert bool(met) == (stage.name in MEETINGS), stage.name


@pytest.mark.parametrize(
    ("owner", "name", "place"),
    [
        (FedAvg, "send", "round 1, the server's message"),
        (FedAvg, "update", "round 1, clients 0, 1, 2, 3, 4"),
        (FedAvg, "aggregate", "round 1, aggregation"),
        (FedAvg, "finish", "after the last round, clients 0, 1, 2, 3, 4"),
        (ClientStore, "put", "round 1, the clients' private state"),
        (OneProcess, "allgather", "round 1, the clients' numbers"),
    ],
)
def test_a_failure_on_one_rank_names_its_stage(monkeypatch, owner, name, place):
    def fail(*arguments):
        raise ZeroDivisionError("a bug")

    played = rounds(OneProcess(), "fedavg")
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(RankFailure) as caught:
        for round, stages in played:
            play(round, stages)
    text = str(caught.value)
    assert text.startswith(f"{place}, ") and "test_stages.py:" in text
    assert text.endswith(": ZeroDivisionError: a bug")


def test_divergence_is_a_failure_of_the_whole_run():
    diverging = {
        "name": "tiny:Diverges",
        "everyone": True,
        "since": 1,
    }
    (first, stages), _ = rounds(OneProcess(), diverging)
    before = {name: rows.clone() for name, rows in first.server.items()}
    with pytest.raises(RunFailure, match=r"^round 1: clients 0, 1, 2, 3, 4 diverged"):
        play(first, stages)
    assert all(torch.equal(first.server[name], rows) for name, rows in before.items())


def test_a_round_collects_its_costs_and_the_highest_vote():
    played = rounds(OneProcess(), "fedavg", vote=lambda: 2)
    (first, stages), (final, final_stages) = played
    seen = []

    def see(stage, round):
        if stage == "send":
            seen.append(dict(round.stopwatch.seconds))

    play(first, stages, [see])
    result = conclude(first, {})
    play(final, final_stages)
    assert first.collected.vote == 2 and not result.plan.is_final
    assert conclude(final, {}).plan.is_final
    assert result.values["floats_down"] == first.prepared.setup.layout.width
    assert "send" in seen[0] and "train" not in seen[0]
    assert not first.stopwatch.seconds  # they belong to the next round


@pytest.mark.parametrize(
    ("message", "down", "words"),
    [
        (torch.zeros(3, 2), True, "float32 [3, 2]; "),
        ({"a": torch.zeros(())}, True, "an invalid message: 'a' is float32 []; "),
        (
            {"a": torch.zeros(2, 4)},
            True,
            "'a' of shape [2, 4]; ",
        ),
        ({"a": torch.zeros(4)}, False, "'a' of shape [4]; "),
        ({"a": 1.0}, True, "an invalid message: 'a' is a float; "),
        ({"a": np.zeros((3, 2))}, False, "an invalid message: 'a' is a ndarray; "),
        (
            {"a": torch.zeros(3, 2).bfloat16()},
            False,
            "an invalid message: 'a' is bfloat16 [3, 2]; ",
        ),
        (
            {"a": Mean(torch.zeros(3, 4), torch.ones(3))},
            True,
            "'a' as a Mean",
        ),
        ({0: torch.zeros(3, 2)}, False, "the name 0; "),
        (
            {"a": POOL, "a.choice": torch.zeros(3)},
            True,
            "an invalid message: the Pool ",
        ),
        (
            {"a": Mixture(torch.zeros(2, 4), torch.ones(3, 2), torch.float32)}
            | {"a.choice": torch.zeros(3)},
            True,
            "an invalid message: the Mixture 'a' ",
        ),
    ],
)
def test_invalid_messages_are_refused_with_their_hooks_name(message, down, words):
    with pytest.raises(MessageError) as caught:
        check_message("hook", message, 3, down)
    assert str(caught.value).startswith(f"'hook' returns {words}")
    assert caught.value.hook == "hook"


@pytest.mark.parametrize("down", [True, False])
def test_valid_messages_are_passed_on_unchanged(down):
    message = {"a": torch.zeros(3, 2), "b": Field(torch.zeros(3, 1), floats=0)}
    message |= {"c": torch.zeros(5)} if down else {}
    mean = Mean(torch.zeros(3, 4).bfloat16(), torch.ones(3))
    message |= {} if down else {"d": mean}
    assert check_message("hook", message, 3, down) is message


def test_a_message_of_a_later_round_is_checked_too(federate):
    expected = "^round 2, clients 0, 1, 2, 3, 4: MessageError: 'update' .*'model'"
    with pytest.raises(RankFailure, match=expected):
        federate(f"{__name__}:Forgetful", rounds=2)


class Forgetful(FedAvg):
    """FedAvg that sends one row for all clients in round 2."""

    def update(self, fleet, inbox):
        message = super().update(fleet, inbox)
        if fleet.round == 2:
            return {"model": message["model"].tensor.mean(dim=0)}
        return message


def test_groups_of_clients_send_the_same_entries():
    joined = JoinedWork(2)
    finite, rows = torch.ones(1, dtype=torch.bool), torch.ones(1, 3)
    joined.add(LocalWork(np.array([0]), {"a": rows, "b": rows}, {}, finite))
    for message in ({"a": rows}, {"a": rows, "b": rows[:, :1]}):
        with pytest.raises(ValueError, match="different messages"):
            joined.add(LocalWork(np.array([1]), message, {}, finite))


class FewClusters(FedAvg):
    def found_clusters(self, server):
        return torch.zeros(2, dtype=torch.int64)


class NoClusters(FedAvg):
    def found_clusters(self, server):
        return server["clusters"]


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        ("FewClusters", r".*'found_clusters' returns int64 \[2\]; "),
        ("NoClusters", r".*test_stages\.py:\d+: KeyError"),
    ],
)
def test_mistakes_in_clusters_have_their_round(federate, method, cause):
    with pytest.raises(RankFailure, match="^round 1, metrics" + cause):
        federate(f"{__name__}:{method}", shift=[{"kind": "labels"}])


def test_clients_outside_the_cohort_are_scored_without_new_state():
    (first, stages), _ = rounds(OneProcess(), participation={"fraction": 0.4})
    play(first, stages)
    columns = conclude(first, {}).numbers.clients.columns
    trained = np.isin(np.arange(5), first.plan.cohort)
    assert 0 < trained.sum() < 5
    assert np.isfinite(columns["clients/pre/loss"]).all()
    assert (np.isfinite(columns["clients/post/loss"]) == trained).all()
    written = first.prepared.store.snapshot().written
    assert sorted(written) == first.plan.cohort.tolist()
