"""Trial rounds with a small federation."""

import pytest
import tiny
import torch
from playing import prepare_alone, prepare_tiny
from refusals import expect_refusal

from hpcfl.commands import needs
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Mean
from hpcfl.files import heartbeat
from hpcfl.methods.base import OwnOverlay
from hpcfl.methods.fedavg import FedAvg
from hpcfl.rows.declared import MisusedTensor
from hpcfl.simulation import dry_round, preflight


class NeedsFive(FedAvg):
    """A method that declares the state of five clients."""

    def server_state(self, setup):
        seen = torch.zeros(setup.clients)
        seen[4] = 1.0
        return {**super().server_state(setup), "seen": seen}


class Mistaken(FedAvg):
    """A method that declares state other than tensors."""

    def server_state(self, setup):
        return {"model": None}


class LongStep(OwnOverlay):
    """A method with a long server step."""

    def aggregate(self, server, cohort, uplink):
        for _ in range(10 * dry_round.HEARTBEATS):
            heartbeat.beat()
        return uplink


@pytest.fixture
def small(monkeypatch):
    """The trial has two clients, for any size of the experiment."""
    monkeypatch.setattr(dry_round, "FLOATS", 0)


def test_a_state_that_needs_all_clients_is_not_refused(small):
    prepared = prepare_tiny("test_dry_round:NeedsFive")
    assert prepared.setup.clients >= 5
    preflight.run(prepared, OneProcess())


def test_a_mistake_in_the_state_is_found_before_the_state_is_made(small):
    prepared = prepare_tiny("test_dry_round:Mistaken")
    with expect_refusal("server_state"):
        preflight.run(prepared, OneProcess())


def test_a_long_step_of_an_overlay_on_the_server_is_not_refused():
    overlay = {"kind": "test_dry_round:LongStep"}
    table = tiny.table("fedavg") | {"overlay": [overlay]}
    prepared = prepare_alone(table)
    preflight.run(prepared, OneProcess())


def test_a_trial_trains_on_its_samples_where_smaller_batches_are_dropped():
    """Two samples are fewer than a mini-batch."""
    prepared = prepare_tiny("mistakes:Item", training={"drop_last": True})
    assert preflight.run(prepared, OneProcess()).findings.unbatched


def test_a_client_counts_as_the_mean_of_all_unless_it_weighs_nothing():
    rows = torch.tensor([[[1.0, -2.0], [0.1, 5.0]]])
    one = dry_round.average_one(Mean(rows[:, 0], torch.tensor([3])))
    two = dry_round.average_one(Mean(rows, torch.tensor([[3, 0]])))
    assert torch.equal(one, rows[0, 0]) and torch.equal(two[0], one)
    assert two[1].isnan().all()


def test_a_round_that_is_too_large_is_counted_and_left_out(monkeypatch):
    """The server's model counts once, and the models of a training client six times."""
    prepared = prepare_tiny("fedavg")
    exact, model = needs.compute_server_needs(prepared), 4 * prepared.setup.layout.width
    monkeypatch.setattr(dry_round, "SMALL_MODEL", 0)
    assert dry_round.count_bytes(prepared) == 7 * model
    assert preflight.run_unless_too_large(prepared, OneProcess()).findings.trainings
    monkeypatch.setattr(dry_round, "TOO_LARGE", 7 * model - 1)
    left_out = preflight.run_unless_too_large(prepared, OneProcess())
    assert not left_out.findings.trainings and "large" in left_out.notes[-1]
    assert needs.compute_server_needs(prepared) == exact
    monkeypatch.setattr(dry_round, "TOO_LARGE", model - 1)
    outline = needs.compute_server_needs(prepared)
    assert outline.is_outline and outline.state == exact.state


def test_rounding_is_no_dependence_on_other_clients():
    unknown = [torch.nan, torch.inf, -torch.inf]
    together = {"upload 'a'": torch.tensor([1.0, *unknown]), "b": torch.zeros(0)}
    apart = together | {"upload 'a'": torch.tensor([1.0001, *unknown])}
    dry_round.refuse_other_results(together, apart, tolerance=1e-3)
    with pytest.raises(MisusedTensor, match="upload 'a'"):
        dry_round.refuse_other_results(together, apart, tolerance=1e-5)
