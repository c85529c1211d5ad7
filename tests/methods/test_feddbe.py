"""FedDBE: methods-3.md §7."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import build_model, train_samples
from test_fedrep import phases
from torch.nn.functional import cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.feddbe import FedDBE, predict_biased, predict_with_bias
from hpcfl.models.mlp import MLP


class Frozen(FedDBE):
    """FedDBE with vectors that stay 0."""

    def local_train(self, fleet, rows, inbox):
        if "mean" not in inbox:
            return super().local_train(fleet, rows, inbox)
        variables = self.loss_variables(fleet, inbox)
        return fleet.train(rows, params=("body", "head"), variables=variables)


@pytest.fixture
def model():
    return FedDBE(name="feddbe").adapt(MLP((5,), 4, hidden=(6,)))


@pytest.fixture
def batch():
    return Batch(torch.randn(8, 5), torch.arange(8) % 4)


def shared(played):
    """Return the server's body and head."""
    layout = played.prepared.setup.layout
    return played.server["model"][: layout.columns("head").stop]


def test_round_1_is_fedavgs_and_gives_the_exact_mean(federate, monkeypatch):
    """The mean covers all samples of all clients after training, in evaluation mode."""
    played, calls = phases(federate, monkeypatch, method="feddbe", rounds=1)
    assert torch.equal(shared(played), federate("fedavg", rounds=1).server["model"])
    assert not played.clients["bias"].any()
    ((_, trained),) = calls
    found = []
    for client, row in enumerate(trained):
        x, _ = train_samples(played.prepared, client)
        found.append(build_model(played.prepared.setup, row).features(x))
    expected = torch.cat(found).mean(dim=0)
    torch.testing.assert_close(played.server["mean"], expected)


def test_the_models_of_round_1_may_be_discarded(federate):
    method = {"name": "feddbe", "initial": "discard"}
    first = federate(method, rounds=1)
    assert torch.equal(first.server["model"], first.prepared.setup.initial())
    kept = federate("feddbe", rounds=1).server["mean"]
    assert torch.equal(first.server["mean"], kept)
    second = federate(method, rounds=2)
    assert not torch.equal(second.server["model"], first.server["model"])


def test_the_pull_by_hand(model, batch):
    """κ = 50, d = 6: at the distance δ from m̄ the term is 25/6·Σ δ_c², with the
    gradient κδ/(d·b) in each sample's features; at m̄ it is zero.
    """
    method, mean = FedDBE(name="feddbe"), model.features(batch.x).mean(dim=0).detach()
    features = model.features(batch.x).detach().requires_grad_()
    model.features = lambda x: features
    fit = cross_entropy(predict_with_bias(model, features), batch.y)
    (plain,) = torch.autograd.grad(fit, features)
    for away in (torch.zeros(6), torch.arange(6) / 10):
        loss = method.loss(model, batch, Lane(mean=mean - away))
        expected = fit + 25 / 6 * away.square().sum()
        torch.testing.assert_close(loss, expected)
        (gradient,) = torch.autograd.grad(loss, features)
        pull = (50 * away / (6 * 8)).expand(8, 6)
        torch.testing.assert_close(gradient - plain, pull, rtol=1e-4, atol=1e-6)


def test_the_vector_is_a_bias_of_the_head(model, batch):
    """head(φ + β) = Wφ + (b + Wβ)."""
    vector = torch.randn(6)
    model.personal_bias.vector.data.copy_(vector)
    found = predict_biased(model, batch.x, SimpleNamespace())
    model.head.bias.data += model.head.weight @ vector
    torch.testing.assert_close(found, model(batch.x))


def test_the_vector_stays_with_its_client(federate):
    """It is trained from round 2 on."""
    played = federate("feddbe", rounds=3, participation={"fraction": 0.4})
    private = played.prepared.setup.layout.columns("personal_bias")
    assert not played.server["model"][private].any()
    trained = np.isfinite(played.values["clients/diverged"][1:3]).any(axis=0)
    moved = played.clients["bias"].any(dim=1)
    np.testing.assert_array_equal(moved, trained)


def test_models_are_scored_with_the_vector_and_the_global_one_without(federate):
    """Vectors are 0 until the end of round 1."""
    values = federate("feddbe", rounds=3).values
    own, common = values["clients/pre/loss"], values["clients/global/loss"]
    np.testing.assert_array_equal(own[:2], common[:2])
    assert (own[2:] != common[2:]).all()
