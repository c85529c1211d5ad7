"""The server's state of a small federation, which stands for that of all clients."""

import pytest
import tiny
import torch

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.files import heartbeat
from hpcfl.methods.base import OwnOverlay
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import dry_round, preflight
from hpcfl.simulation.prepare import prepare


class NeedsFive(FedAvg):
    """Declares the state of five clients."""

    def server_state(self, setup):
        seen = torch.zeros(setup.clients)
        seen[4] = 1.0
        return {**super().server_state(setup), "seen": seen}


class Mistaken(FedAvg):
    """Declares no tensor."""

    def server_state(self, setup):
        return {"model": None}


class LongStep(OwnOverlay):
    """Works on the server for a long time."""

    def aggregate(self, server, cohort, uplink):
        for _ in range(10 * dry_round.HEARTBEATS):
            heartbeat.beat()
        return uplink


class ChangesInPlace(FedAvg):
    """Changes a tensor that a checkpoint may be writing."""

    def aggregate(self, server, cohort, uplink):
        server["model"] += 1


@pytest.fixture
def small(monkeypatch):
    """Two clients are tried, whatever the experiment has."""
    monkeypatch.setattr(dry_round, "FLOATS", 0)


def test_a_state_that_needs_all_clients_is_not_refused(small):
    prepared = prepare(
        config.parse(tiny.table("test_dry_round:NeedsFive")), OneProcess()
    )
    assert prepared.setup.clients >= 5
    preflight.run(prepared, OneProcess())


def test_a_mistake_in_the_state_is_found_before_the_state_is_made(small):
    prepared = prepare(
        config.parse(tiny.table("test_dry_round:Mistaken")), OneProcess()
    )
    with pytest.raises(UserError, match="server_state"):
        preflight.run(prepared, OneProcess())


def test_a_long_step_of_an_overlay_on_the_server_is_not_refused():
    overlay = {"kind": "test_dry_round:LongStep"}
    table = tiny.table("fedavg") | {"overlay": [overlay]}
    prepared = prepare(config.parse(table), OneProcess())
    preflight.run(prepared, OneProcess())


def test_messages_have_their_shapes_without_training():
    """The server sends APFL's clients one model; a client returns it as it came."""
    prepared = prepare(config.parse(tiny.table("apfl")), OneProcess())
    width, rounds = prepared.setup.layout.width, 0
    for messages in dry_round.record_two_rounds(prepared):
        sent, returned = messages.sent["model"], messages.returned["model"].tensor
        assert (sent.shape, returned.shape) == ((width,), (1, width))
        assert torch.equal(returned[0], sent)
        rounds += 1
    assert rounds == 2


def test_a_server_step_in_place_is_refused():
    table = tiny.table("test_dry_round:ChangesInPlace")
    prepared = prepare(config.parse(table), OneProcess())
    with pytest.raises(UserError, match=r"changes server\['model'\] in place"):
        preflight.run(prepared, OneProcess())
