"""FedAvgM: methods-3.md §6."""

import pytest
import torch

from hpcfl.methods.fedavgm import FedAvgM


def steps(count, changes, **keys):
    """Return the change of the server's model, one number, in each round, in which the
    clients' mean has the given distance from it.
    """
    method = FedAvgM(name="fedavgm", **keys)
    server = {"model": torch.zeros(1).double(), "step": torch.zeros(1).double()}
    found = []
    for change in changes[:count]:
        before = server["model"]
        method.aggregate(server, None, {"model": before + change})
        found.append((server["model"] - before).item())
    return found


def test_a_constant_change_by_hand():
    """β = 0.9, Δ = 1: v = 1, 0.9 + 1, 0.9·1.9 + 1; with η_s = ½ half of each."""
    assert steps(3, [1, 1, 1]) == pytest.approx([1, 1.9, 2.71])
    assert steps(3, [1, 1, 1], server_lr=0.5) == pytest.approx([0.5, 0.95, 1.355])


def test_nesterov_by_hand():
    """β = ½, Δ = 1, 3: v = 1, 3.5, and steps Δ + βv = 1.5, 4.75."""
    found = steps(2, [1, 3], momentum=0.5, nesterov=True)
    assert found == pytest.approx([1.5, 4.75])


def test_a_round_without_uploads_changes_nothing(federate):
    """All clients diverge in round 2 and are left out."""
    method = {"name": "methods.test_fedavgm:Diverges"}
    sections = {"training": {"on_divergence": "exclude"}}
    once, twice = (federate(method, rounds=rounds, **sections) for rounds in (1, 2))
    assert once.server["step"].any()
    for name in ("model", "step"):
        assert torch.equal(once.server[name], twice.server[name])


class Diverges(FedAvgM):
    def local_train(self, fleet, rows, inbox):
        trained = super().local_train(fleet, rows, inbox)
        return trained * torch.nan if fleet.round == 2 else trained
