"""GPFL: methods-3.md §9."""

import numpy as np
import pytest
import torch
from refusals import expect_refusal
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.gpfl import GPFL, Valve
from hpcfl.models import parts
from hpcfl.models.mlp import MLP


@pytest.fixture
def model():
    return adapted((5,), 4)


def test_the_valve_by_hand():
    """γ = 1 and β = −2, the shifts of LayerNorm: ReLU(2φ − 2)."""
    valve = closed(Valve(6))
    valve.gamma[2].bias.data.fill_(1)
    valve.beta[2].bias.data.fill_(-2)
    features = torch.randn(8, 6)
    found = valve(features, torch.randn(6))
    torch.testing.assert_close(found, (2 * features - 2).relu())


def test_the_loss_by_hand(model):
    """All three terms and the decay, with λ = 2 and μ = 3."""
    batch = Batch(torch.randn(8, 5), torch.arange(8) % 4)
    own, common, received = torch.randn(6), torch.randn(6), torch.randn(4, 6)
    lane = Lane(personal_context=own, global_context=common, embeddings=received)
    features = model.features(batch.x)
    personal, view = model.valve(features, own), model.valve(features, common)
    fit = cross_entropy(model.head(personal), batch.y)
    logits = cosine_similarity(view[:, None], model.embeddings.weight, dim=2)
    distance = (view - received[batch.y]).norm()
    shared = [*model.valve.parameters(), *model.embeddings.parameters()]
    decay = sum(p.square().sum() for p in shared)
    expected = fit + cross_entropy(logits, batch.y) + 2 * distance + 1.5 * decay
    found = GPFL(name="gpfl", lam=2.0, mu=3.0).loss(model, batch, lane)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(sum(lane._regularisers), expected - fit)


def test_at_the_embeddings_the_distance_has_a_slope(model):
    """All distances are zero: the root of 10⁻¹², and finite gradients."""
    batch = Batch(torch.randn(8, 5), torch.arange(8) % 4)
    context = torch.randn(6)
    closed(model.valve)
    model.hidden1.weight.data.zero_()
    model.hidden1.bias.data.zero_()  # makes the view 0
    lane = Lane(
        personal_context=context, global_context=context, embeddings=torch.zeros(4, 6)
    )
    loss = GPFL(name="gpfl", lam=1.0).loss(model, batch, lane)
    for slope in torch.autograd.grad(loss, list(model.parameters())):
        assert slope.isfinite().all()


def test_equal_shares_make_both_contexts_one(make_fleet):
    """Otherwise z_i = Σ π_k e_k: for 6 and 2 samples ¾e_0 + ¼e_1."""
    fleet = make_fleet(
        [[2, 2, 2, 2], [6, 2, 0, 0]], model={"name": "test_gpfl:adapted"}
    )
    method, row = GPFL(name="gpfl"), fleet.setup.initial()
    private = method.find_private_columns(fleet.layout)
    fleet.state["head"] = row[private].repeat(2, 1)
    found = method.prepare(fleet, {"body": row[: private.start]})
    embeddings = fleet.layout.split(row)["embeddings.weight"]
    own, common = found["personal_context"], found["global_context"]
    torch.testing.assert_close(common, embeddings.mean(dim=0).repeat(2, 1))
    torch.testing.assert_close(own[0], common[0])
    torch.testing.assert_close(own[1], 0.75 * embeddings[0] + 0.25 * embeddings[1])


def adapted(shape, classes):
    return GPFL(name="gpfl").adapt(MLP(shape, classes, hidden=(6,)))


class Open(GPFL):
    """GPFL with a constant valve that passes all features, and only the cross-entropy."""

    def adapt(self, model):
        model = super().adapt(model)
        closed(model.valve)
        return model

    def loss(self, model, batch, lane):
        features = parts(model).features(batch.x)
        view = model.get_submodule("valve")(features, lane.personal_context)
        return cross_entropy(parts(model).head(view), batch.y)

    def local_train(self, fleet, rows, inbox):
        variables = self.loss_variables(fleet, inbox)
        return fleet.train(rows, params=("hidden1", "head"), variables=variables)


def test_contexts_may_lag_by_a_round(federate):
    """The contexts use the client's embeddings at the end of its last round, and zeros
    in its first round.
    """
    played = federate({"name": "gpfl", "lag": True}, rounds=1)
    fleet = played.prepared.make_fleet(np.arange(5), 2, is_scored=False)
    private = played.prepared.method.find_private_columns(fleet.layout)
    body = played.server["model"][: private.start]
    found = played.prepared.method.prepare(fleet, {"body": body})
    last = played.clients["embeddings"].view(5, 4, 6)
    torch.testing.assert_close(found["global_context"], last.mean(dim=1))
    received = fleet.layout.split(played.server["model"])["embeddings.weight"]
    assert torch.equal(found["embeddings"][0], received)
    assert not played.prepared.store.template["embeddings"].any()


def test_ala_is_refused(federate):
    with expect_refusal(r"method: ala = true .*gpfl"):
        federate({"name": "gpfl", "ala": True})


def closed(valve):
    """Return the valve with zero layers."""
    for layer in (valve.gamma[0], valve.beta[0]):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return valve
