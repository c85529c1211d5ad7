"""Federations in virtual time: synchronous rounds (time.md §4)."""

import numpy as np
import pytest
import torch
from playing import prepare_tiny
from recorded import assert_alike

from hpcfl.communication.communicator import OneProcess
from hpcfl.simulation.round import Round, RoundPlan
from hpcfl.simulation.stages import TRAINING, play

pytestmark = pytest.mark.slow

SYNCHRONOUS = {"mode": "synchronous"}
# a second for each sample, and no time for messages
EQUAL = {
    **SYNCHRONOUS,
    "devices": "equal",
    "sample_ms": 1000.0,
    "down_sigma": 0.0,
    "up_sigma": 0.0,
    "latency": 0.0,
}


@pytest.mark.parametrize("method", ["ditto", "scaffold"])
def test_virtual_time_without_late_clients_changes_no_bit(federate, method):
    keys = {"participation": {"fraction": 0.6, "dropout": 0.3}}
    untimed = federate(method, **keys)
    with_clock = federate(method, **keys, time=SYNCHRONOUS)
    assert with_clock.digest == untimed.digest
    assert_alike(untimed.values, with_clock.values)
    assert (np.diff(with_clock.values["time/seconds"]) >= 0).all()


def test_times_have_a_place_for_newcomers(federate):
    played = federate("fedavg", time=SYNCHRONOUS, newcomers={"clients": 2})
    updates = played.values["clients/updates"]
    assert updates[:-1].sum(axis=0).tolist()[:5] == [6] * 5
    assert np.isnan(updates[:, 5:]).all()


def test_clients_that_miss_the_deadline_change_nothing(federate):
    """Equal devices; the clients differ only in their samples. Ditto trains three
    epochs in total, so they take 6, 27, 12 and 24 seconds. With a deadline between the
    second and the third arrival two clients count, and the private state of the others
    is that before round 1.
    """
    counts = [[2, 0, 0, 0], [0, 9, 0, 0], [4, 0, 0, 0], [0, 0, 8, 0]]
    time = {**EQUAL, "deadline": 15.0}
    played = federate("ditto", counts, rounds=1, time=time)
    initial = federate("ditto", counts, rounds=1, time={**time, "deadline": 1e-3})
    assert played.values["time/seconds"][0] == 15.0
    trained = np.isfinite(played.values["clients/train_loss"][0])
    assert trained.tolist() == [True, False, True, False]
    assert played.values["clients/updates"][0].tolist() == [1, 0, 1, 0]
    before = initial.clients["personal"]
    same = (played.clients["personal"] == before).all(dim=1)
    assert same.tolist() == [False, True, False, True]
    # A round without arrivals changes neither private state nor the server.
    assert torch.equal(before[0], before[1])
    assert initial.values["time/seconds"][0] == 0.001
    assert "clients/train_loss" not in initial.values


def test_a_round_without_arrivals_scores_an_empty_cohort(federate):
    played = federate(
        "fedavg",
        rounds=2,
        evaluation={"clients": "cohort"},
        time={**SYNCHRONOUS, "deadline": 1e-3},
    )
    assert played.values["time/arrivals"][:2].tolist() == [0, 0]


def test_partial_work_of_late_clients_equals_that_of_stragglers(federate):
    """Three epochs of 2, 9 and 6 seconds, of which 3, 0 and 1 fit into 6.1 seconds."""
    counts = [[2, 0, 0, 0], [0, 9, 0, 0], [6, 0, 0, 0]]
    time = {**EQUAL, "deadline": 6.1, "late": "partial"}
    keys = {"rounds": 1, "training": {"epochs": 3}}
    played = federate("fedavg", counts, **keys, time=time)
    prepared = prepare_tiny("fedavg", counts, **keys)
    cohort, shares = np.array([0, 2]), np.array([1.0, 0.3])
    plan = RoundPlan(1, cohort, np.arange(3), is_scored=True, epoch_shares=shares)
    play(Round(plan, OneProcess(), prepared, prepared.initial_server_state), TRAINING)
    assert torch.equal(played.server["model"], prepared.initial_server_state["model"])
