"""Rounds of an asynchronous server, compared with the serial simulation of events and,
if no client is late, with synchronous rounds (time.md §5, §6, §9).
"""

from functools import partial

import numpy as np
import pytest
import serial
import torch
from every_method import short
from playing import prepare_tiny
from recorded import assert_alike
from refusals import expect_refusal

from hpcfl.clock.asynchronous.rounds import take_step
from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import OneProcess
from hpcfl.simulation import prepare as preparing
from hpcfl.trained.models import predict_classes

pytestmark = pytest.mark.slow

# twelve clients with different devices
COUNTS = [[3 + client % 5, 2, client % 3, 4] for client in range(12)]
ASYNCHRONOUS = {"mode": "asynchronous", "sigma": 1.0, "sample_ms": 100.0}
EIGHT = {"buffer": 3, "concurrency": 8}
EVEN = {  # so little work that all take equally long
    "mode": "asynchronous",
    "sample_ms": 1e-6,
    "devices": "equal",
    "down_sigma": 0.0,
    "up_sigma": 0.0,
}


def polynomial(staleness):
    return round(2**16 / (1 + staleness) ** 0.5)


def halved(staleness):
    """Return the weights of hinge with a = 1 and b = 1."""
    return round(2**16 / max(1, staleness))


def against_serial(federate, method, units_of=polynomial, **sections):
    """Run both simulations and return the rounds of the run."""
    played = federate(method, COUNTS, **sections)
    prepared = prepare_tiny(method, COUNTS, **sections)
    calendar = make_schedule(prepared, OneProcess())
    expected = serial.play(prepared, calendar, units_of)
    assert played.server.keys() == expected.server.keys()
    states = (expected.server, played.server), (expected.clients, played.clients)
    for of_serial, found in states:
        for name, tensor in of_serial.items():
            assert torch.equal(found[name], tensor), name
    for (round, client), numbers in expected.numbers.items():
        for name, value in numbers.items():
            if name == "sample_gradients":
                continue  # scoring before training counts, too
            recorded = played.values[f"clients/{name}"][round - 1, client]
            assert np.array_equal(recorded, value, equal_nan=True), name
    return played


CASES = {
    "fedbuff": ("fedavg", polynomial, EIGHT, {}),
    "fedasync": (
        "ditto",
        halved,
        {
            "rule": "fedasync",
            "concurrency": 4,
            "staleness": "hinge",
            "a": 1.0,
            "b": 1,
        },
        {},
    ),
    "semi": (
        "fedrep",
        polynomial,
        {
            "rule": "semi",
            "period": 1.5,
            "concurrency": 8,
            "max_staleness": 3,
            "availability": "markov",
            "on": 20.0,
            "off": 10.0,
            "server_lr": 0.7,
        },
        {
            "training": {"epochs": 2, "schedule": "cosine"},
            "participation": {"stragglers": 0.5, "dropout": 0.2},
        },
    ),
    # reads the round, so only clients of the same version train together
    "one at work": ("partialfed", polynomial, {"concurrency": 1}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rounds_are_the_serial_simulation(federate, case):
    method, units_of, time, keys = CASES[case]
    keys = {**keys, "rounds": 6, "time": {**ASYNCHRONOUS, **time}}
    played = against_serial(federate, method, units_of, **keys)
    late = played.values["staleness/largest"].max()
    assert late == 0 if time["concurrency"] == 1 else late > 1


@pytest.mark.parametrize("method", ["ditto", "fedrep"])
def test_groups_of_clients_change_no_bit(federate, monkeypatch, method):
    """As on a device with memory for the rows of two clients."""
    sections = {"rounds": 4, "time": {**ASYNCHRONOUS, **EIGHT}}
    plain = federate(method, COUNTS, **sections)
    two = partial(preparing.LaneChoice, clients_on_device=2)
    monkeypatch.setattr(preparing, "LaneChoice", two)
    changed = federate(method, COUNTS, **sections)
    assert changed.prepared.resources.clients_on_device == 2
    assert changed.digest == plain.digest


@pytest.mark.parametrize("method", ["ditto", "fedadam", "local"])
def test_equally_fast_clients_give_synchronous_rounds(federate, method):
    keys = {"participation": {"fraction": 0.5}, "rounds": 2}
    waiting = federate(method, COUNTS, **keys)
    racing = federate(method, COUNTS, **keys, time=EVEN)
    assert racing.digest == waiting.digest
    assert_alike(waiting.values, racing.values)


def test_a_diverged_client_has_no_weight(federate):
    """Its round equals a synchronous one, and its state is not stored."""
    method = {"name": "tiny:Diverges", "client": 1}
    training = {"on_divergence": "exclude"}
    waiting = federate(method, training=training)
    racing = federate(method, training=training, time={**EVEN, "buffer": 5})
    assert np.nansum(racing.values["clients/diverged"]) > 0
    assert racing.digest == waiting.digest


def test_a_step_by_hand():
    """The weights are 3 and 1. The client of weight 1 started from version 0, whose
    model is 0; version 1 is 4. It moved from 0 to 2, the other client from 4 to 8:
    their mean is 6.5, and the weighted change (3 · 4 + 1 · 2)/4 = 3.5. A rate of ½
    gives half of the step. If no client is late, the step is the mean, bit for bit.
    """
    sent = {0: torch.tensor([0.0]), 1: torch.tensor([4.0])}
    weights = torch.tensor([3.0, 1.0]).double()
    mean = torch.tensor([6.5])
    assert take_step(mean, sent, [1, 0], weights, 1.0).item() == 7.5
    assert take_step(mean, sent, [1, 0], weights, 0.5).item() == 5.75
    assert take_step(mean, {1: sent[1]}, [1, 1], weights, 1.0) is mean


def test_models_of_a_round_are_recomputed(played):
    """The last round's clients started from versions older than the round's."""
    time = {**ASYNCHRONOUS, "buffer": 2, "concurrency": 4}
    run = played("ditto", rounds=6, time=time)
    values = run.results.values
    assert values["staleness/largest"][5] > 0
    found = list(run.models.of_clients(range(5), "post", at=6))
    assert len(found) == 2
    for one in [*found, *run.models.of_clients(range(5), "pre", at=6)]:
        x, y = run.models.samples(one.clients)
        right = predict_classes(one.module, x) == y
        assert float(right.double().mean()) == one.recorded


REFUSED = {
    "scaffold": "control",
    "cfl": "'models'",
    "fedgh": "'means'",
    "fednova": "'change'",
    "fedproto": "'prototypes'",
}


@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_need_whole_rounds_are_refused(method):
    prepared = prepare_tiny(short(method), COUNTS, time=ASYNCHRONOUS)
    mode = rf"^time\.mode = 'asynchronous': {method}"
    with expect_refusal(rf"{mode} .*{REFUSED[method]}.*'synchronous'"):
        make_schedule(prepared, OneProcess())


def test_the_fastest_free_clients_start(federate):
    """A client is free unless it is training or its upload is in the buffer."""
    counts, rounds = [[2, 2, 2, 2]] * 8, 4
    # rounds after which all clients that started in these rounds have arrived
    later = 20
    keys = {
        # among all free clients
        "participation": {"select": "fastest", "candidates": 8.0},
        "time": {"mode": "asynchronous", "concurrency": 3, "buffer": 2, "sigma": 1.0},
        "rounds": rounds,
    }
    calendar = federate("fedavg", counts, **keys).schedule
    ticks = np.array([calendar.duration.count_ticks(client, 1) for client in range(8)])
    steps = [calendar.step(number) for number in range(1, later)]
    starts = {job.begun for step in steps[:rounds] for job in step.jobs}
    assert len(starts) > rounds
    for tick in starts:
        chosen, busy = [], []
        for step in steps:
            for job in step.jobs:
                if job.begun == tick:
                    chosen.append(job.client)
                elif job.begun < tick < step.ended:
                    busy.append(job.client)
        left = np.setdiff1d(np.arange(8), [*chosen, *busy])
        assert ticks[chosen].max() < ticks[left].min()
