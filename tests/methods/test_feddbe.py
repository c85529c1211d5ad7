"""FedDBE: methods-3.md §7."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
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


@pytest.mark.slow
def test_without_pull_and_vectors_it_is_fedavg(equal_runs):
    method = {"name": "methods.test_feddbe:Frozen", "kappa": 0.0}
    columns = "pre", "post", "global"
    found, other = equal_runs(method, "fedavg", server=(), columns=columns)
    assert torch.equal(shared(found), other.server["model"])


def test_round_1_is_fedavgs_and_gives_the_exact_mean(federate, monkeypatch):
    """The mean covers all samples of all clients after training, in evaluation mode."""
    played, calls = phases(federate, monkeypatch, method="feddbe", rounds=1)
    assert torch.equal(shared(played), federate("fedavg", rounds=1).server["model"])
    assert not played.clients["bias"].any()
    setup, samples = played.prepared.setup, played.prepared.resources.samples
    ((_, trained),) = calls
    found = []
    for client, row in enumerate(trained):
        model = setup.build()
        model.load_state_dict(setup.layout.split(row))
        x, _ = samples.take(samples.train[client])
        found.append(model.features(x))
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
    """P floats are sent down and up. In round 1 the clients also upload the mean, and
    afterwards the server sends it.
    """
    played = federate("feddbe", rounds=3, participation={"fraction": 0.4})
    layout = played.prepared.setup.layout
    private = layout.columns("personal_bias")
    assert private == slice(layout.width - 6, layout.width)
    assert not played.server["model"][private].any()
    width = private.start
    down = played.values["floats_down"][:3]
    assert down.tolist() == [width, width + 6, width + 6]
    up = np.nanmax(played.values["clients/floats_up"][:3], axis=1)
    assert up.tolist() == [width + 6, width, width]
    trained = np.isfinite(played.values["clients/diverged"][1:3]).any(axis=0)
    moved = played.clients["bias"].any(dim=1)
    np.testing.assert_array_equal(moved, trained)


def test_models_are_scored_with_the_vector_and_the_global_one_without(federate):
    """Vectors are 0 until the end of round 1."""
    values = federate("feddbe", rounds=3).values
    own, common = values["clients/pre/loss"], values["clients/global/loss"]
    np.testing.assert_array_equal(own[:2], common[:2])
    assert (own[2:] != common[2:]).all()
