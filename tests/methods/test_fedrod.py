"""FedRoD: methods-2.md §8."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import build_model, train_samples
from test_fedrep import phases
from torch.nn.functional import cross_entropy

from hpcfl.clients.losses import Batch
from hpcfl.methods.fedrod import FedRoD, compute_floored_distribution
from hpcfl.models.mlp import MLP

LINEAR = {"name": "fedrod", "personal": "linear"}
HYPER = {"name": "fedrod", "personal": "hyper"}


@pytest.fixture(params=[LINEAR, HYPER], ids=["linear", "hyper"])
def case(request):
    """Return a method with its model, a batch and a lane."""
    method = FedRoD(**request.param)
    model = method.adapt(MLP((5,), 4, hidden=(6,)))
    batch = Batch(torch.randn(12, 5), torch.randint(3, (12,)))
    [shares] = compute_floored_distribution(torch.tensor([[5.0, 4.0, 3.0, 0.0]]))
    return method, model, batch, SimpleNamespace(distribution=shares)


def gradients(model, value):
    names, leaves = zip(*model.named_parameters(), strict=True)
    slopes = torch.autograd.grad(value, leaves, materialize_grads=True)
    return dict(zip(names, slopes, strict=True))


def test_the_personal_loss_moves_the_personal_head_only(case):
    method, model, batch, lane = case
    residual = method.compute_residual_term(
        model, model.features(batch.x), batch.y, lane
    )
    for name, gradient in gradients(model, residual).items():
        assert gradient.any() == name.startswith("personal")


def test_generic_loss_by_hand(case):
    """The logits are increased by log π; the floor excludes absent classes."""
    method, model, batch, lane = case
    logits = (model(batch.x) + lane.distribution.log())[:, :3]
    found = method.compute_generic_term(model, model.features(batch.x), batch.y, lane)
    torch.testing.assert_close(found, cross_entropy(logits, batch.y))


def test_personal_loss_adds_both_heads(case):
    method, model, batch, lane = case
    features = model.features(batch.x)
    logits = method.predict_by_both_heads(model, batch.x, lane)
    found = method.compute_residual_term(model, features, batch.y, lane)
    torch.testing.assert_close(found, cross_entropy(logits, batch.y))
    assert torch.equal(
        logits, model(batch.x) + method.predict_residual(model, features, lane)
    )


def test_distributions_have_a_floor_and_no_infinity():
    counts = torch.tensor([[6.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    shares = compute_floored_distribution(counts.double())
    np.testing.assert_allclose(shares[0, :2], [0.75, 0.25])
    assert (shares[0, 2:] > 0).all() and shares.log().isfinite().all()
    assert shares[1].tolist() == [0.25] * 4
    np.testing.assert_allclose(shares.sum(dim=1), 1, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [LINEAR, HYPER], ids=["linear", "hyper"])
def test_both_orders_train_the_same_shared_model(federate, keys):
    """Training of the personal head changes no other parameter, so body and generic
    head are equal in both orders.
    """
    together, separate = (
        federate({**keys, "order": order}, rounds=2)
        for order in ("together", "separate")
    )
    setup = together.prepared.setup
    generic = slice(0, setup.layout.columns("head").stop)
    trained = together.server["model"][generic]
    assert torch.equal(separate.server["model"][generic], trained)
    assert not torch.equal(setup.initial()[generic], trained)


def test_hypernetwork_is_shared_and_counted(federate):
    """P_ψ = (K + 1)d + d·dK + dK, as for CIFAR with d = 192."""
    played = federate(HYPER, rounds=1)
    layout, initial = played.prepared.setup.layout, played.prepared.setup.initial()
    hyper = layout.columns("personal")
    assert hyper.stop - hyper.start == 5 * 6 + 6 * 24 + 24
    assert not torch.equal(played.server["model"][hyper], initial[hyper])
    for classes, expected in ((10, 372_672), (100, 3_724_992)):
        model = FedRoD(**HYPER).adapt(MLP((3,), classes, hidden=(192,)))
        assert sum(p.numel() for p in model.personal.parameters()) == expected


def test_separate_personal_steps_are_plain(federate, monkeypatch):
    """With one full batch r ← r − η∇(ii) at the trained body and generic head, without
    decay, clipping or momentum.
    """
    other = {"weight_decay": 0.9, "clip": 1e-3, "momentum": 0.9}
    training = {"batch_size": 100, "lr": 0.1, "epochs": 2, **other}
    method = {**LINEAR, "order": "separate"}
    played, calls = phases(
        federate, monkeypatch, method=method, rounds=1, training=training
    )
    assert len(calls) == 2
    (_, generic), (start, ended) = calls
    assert torch.equal(generic, start)
    prepared = played.prepared
    personal = prepared.setup.layout.columns("personal")
    initial = prepared.setup.initial()
    head = prepared.setup.layout.columns("head")
    assert torch.equal(initial[personal], initial[head])
    for client, row in enumerate(start):
        x, y = train_samples(prepared, client)
        for _ in range(2):
            model = build_model(prepared.setup, row)
            features = model.features(x)
            loss = prepared.method.compute_residual_term(
                model, features, y, SimpleNamespace()
            )
            slopes = gradients(model, loss)
            step = torch.cat(
                [slopes[f"personal.{name}"].flatten() for name in ("weight", "bias")]
            )
            row = torch.cat([row[: personal.start], row[personal] - 0.1 * step])
        torch.testing.assert_close(ended[client], row, rtol=1e-5, atol=1e-6)
