"""FedRoD: methods-2.md §8."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hpcfl.fleet.kernels import Batch
from hpcfl.methods.fedrod import FedRoD, floored_distribution
from hpcfl.models.mlp import MLP

LINEAR, HYPER = ({"name": "fedrod", "personal": personal} for personal in ("linear", "hyper"))


@pytest.fixture(params=["linear", "hyper"])
def case(request):
    """A method with its model, a batch and a lane."""
    generator = torch.Generator().manual_seed(4)
    method = FedRoD(name="fedrod", personal=request.param)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = method.adapt(MLP((5,), 4, hidden=(6,)))
    batch = Batch(torch.randn(12, 5, generator=generator), torch.randint(3, (12,), generator=generator))
    return method, model, batch, SimpleNamespace(distribution=floored_distribution(torch.tensor([[5.0, 4.0, 3.0, 0.0]]))[0])


def gradients(model, value):
    names, leaves = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, leaves, allow_unused=True), strict=True))


def test_fedrod_10a_a_uniform_distribution_leaves_plain_cross_entropy(case):
    method, model, batch, _ = case
    features = model.features(batch.x)
    even = SimpleNamespace(distribution=floored_distribution(torch.ones(1, 4))[0])
    plain = cross_entropy(model(batch.x), batch.y)
    torch.testing.assert_close(method.generic(model, features, batch.y, even), plain, rtol=0, atol=1e-6)


def test_fedrod_10b_the_personal_loss_moves_the_personal_head_only(case):
    method, model, batch, lane = case
    found = gradients(model, method.residual(model, model.features(batch.x), batch.y, lane))
    for name, gradient in found.items():
        if name.startswith("personal"):
            assert gradient.abs().max() > 0
        else:
            assert gradient is None or (gradient == 0).all()


def test_fedrod_10c_absent_classes_leave_their_row_alone(case):
    method, model, batch, lane = case
    found = gradients(model, method.generic(model, model.features(batch.x), batch.y, lane))
    assert found["head.weight"][3].abs().max() < 1e-9 and found["head.bias"][3].abs() < 1e-9
    assert found["head.weight"][:3].abs().max() > 1e-3
    assert all(found[name] is None for name in found if name.startswith("personal"))


def test_fedrod_personal_loss_adds_both_heads(case):
    method, model, batch, lane = case
    logits = model(batch.x) + method.extra(model, model.features(batch.x), lane)
    torch.testing.assert_close(method.residual(model, model.features(batch.x), batch.y, lane), cross_entropy(logits, batch.y))


def test_fedrod_distributions_have_a_floor_and_no_infinity():
    shares = floored_distribution(torch.tensor([[6.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).double())
    np.testing.assert_allclose(shares[0, :2], [0.75, 0.25])
    assert (shares[0, 2:] > 0).all() and shares.log().isfinite().all()
    assert shares[1].tolist() == [0.25] * 4
    np.testing.assert_allclose(shares.sum(dim=1), 1, rtol=1e-12)


@pytest.mark.parametrize("method", [LINEAR, HYPER])
def test_fedrod_both_orders_walk_the_same_shared_model(federate, method):
    """The personal head moves nothing else, so body and generic head are the same together and separate."""
    together, separate = (federate({**method, "order": order}, rounds=2) for order in ("together", "separate"))
    layout = together.prepared.setup.layout
    generic = slice(0, layout.columns("head").stop)
    assert torch.equal(together.server["model"][generic], separate.server["model"][generic])
    assert not torch.equal(together.server["model"][generic], together.prepared.setup.initial()[generic])


def test_fedrod_linear_head_is_private_and_begins_as_the_generic_one(federate):
    played = federate(LINEAR, rounds=1, participation={"fraction": 0.4})
    layout, initial = played.prepared.setup.layout, played.prepared.setup.initial()
    head, personal = layout.columns("head"), layout.columns("personal")
    assert torch.equal(initial[head], initial[personal])
    moved = (played.clients["head"] != initial[personal]).any(dim=1)
    assert moved.sum() == 2 and torch.equal(played.server["model"][personal], initial[personal])
    assert (played.values["floats_down"][:-1] == personal.start).all()


def test_fedrod_hypernetwork_is_shared_and_counted(federate):
    """P_ψ = (K + 1)d + d·dK + dK; 372,672 for d = 192, K = 10."""
    played = federate(HYPER, rounds=1)
    layout, initial = played.prepared.setup.layout, played.prepared.setup.initial()
    hyper = layout.columns("personal")
    assert hyper.stop - hyper.start == 5 * 6 + 6 * 24 + 24
    assert not torch.equal(played.server["model"][hyper], initial[hyper])
    assert (played.values["clients/floats_up"][:-1] == layout.width).all()
    model = FedRoD(**HYPER).adapt(MLP((3,), 10, hidden=(192,)))
    assert sum(p.numel() for p in model.personal.parameters()) == 372_672


@pytest.mark.parametrize("method", [LINEAR, HYPER])
def test_fedrod_scores_both_heads_and_the_generic_one(federate, method):
    played = federate(method, rounds=2)
    values = played.values
    assert FedRoD.primary == "post"
    for column in ("post", "global"):
        assert np.isfinite(values[f"clients/{column}/loss"][:-1]).all()
    assert (values["clients/pre/loss"] != values["clients/global/loss"]).all()


def test_fedrod_separate_personal_steps_are_plain(federate):
    heads = [federate({**LINEAR, "order": "separate"}, rounds=1, training={"epochs": 1, **extra}).clients["head"]
             for extra in ({"lr": 1e-9}, {"lr": 1e-9, "momentum": 0.9, "weight_decay": 0.9, "clip": 1e-3})]
    torch.testing.assert_close(heads[0], heads[1], rtol=0, atol=1e-8)
