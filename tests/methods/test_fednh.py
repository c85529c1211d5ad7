"""FedNH: methods-1.md §8. V [K, d] prototypes, unit rows; f unit features; logits s·V
f.
"""

import math

import pytest
import torch
from by_hand import build_model, train_samples

from hpcfl.methods.fednh import FedNH, compute_unit_features


def prototypes(played):
    """Return the server's V [K, d] now and before round 1."""
    setup = played.prepared.setup
    return tuple(
        setup.layout.split(model)["head.weight"]
        for model in (played.server["model"], setup.initial())
    )


def test_prototypes_by_hand():
    # d = 2, ρ = ½, V_0 = (1, 0). Clients: N_0 = (1, 3), unit means (0, 1) and (1, 0): Σ
    # = (3, 1), normalised (3, 1)/√10. ½(1, 0) + ½(3, 1)/√10 = (0.9743, 0.1581),
    # normalised. No client has class 1: V_1 is unchanged, also without another
    # normalisation. The server receives the mean Σ/4.
    old = torch.tensor([[1.0, 0.0], [0.6, 0.9]])
    means = torch.tensor([[0.75, 0.25], [torch.nan, torch.nan]]).double()
    moved = FedNH(name="fednh", rho=0.5).move_prototypes(
        old, torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double(), means
    )
    expected = torch.tensor([0.5 + 1.5 / math.sqrt(10), 0.5 / math.sqrt(10)])
    torch.testing.assert_close(moved[0], expected / expected.norm())
    assert torch.equal(moved[1], old[1])


@pytest.mark.parametrize("learn", [True, False])
def test_trains_body_and_scale_and_averages_them_unweighted(federate, learn):
    played = federate({"name": "fednh", "learn_scale": learn}, rounds=1)
    layout, initial = played.prepared.setup.layout, played.prepared.setup.initial()
    trained = played.clients["model"]
    mean = trained.double().mean(dim=0).float()
    moved = (trained != initial).any(dim=0)
    for group, moves in (("body", True), ("head.scale", learn)):
        columns = layout.columns(group)
        torch.testing.assert_close(played.server["model"][columns], mean[columns])
        assert moved[columns].any() == moves
    assert not moved[layout.columns("head.weight")].any()


def test_prototypes_follow_the_normalised_class_means_of_trained_clients(
    federate,
):
    played = federate({"name": "fednh", "rho": 0.7}, rounds=1)
    setup = played.prepared.setup
    target = torch.zeros(4, 6).double()
    for client, row in enumerate(played.clients["model"]):
        model = build_model(setup, row)
        x, y = train_samples(played.prepared, client)
        features = torch.nn.functional.normalize(
            model.features(x).detach(), dim=1
        ).double()
        for c in y.unique():
            mean = features[y == c].mean(0)
            target[c] += (y == c).sum() * mean / mean.norm()
    moved, initial = prototypes(played)
    expected = 0.7 * initial.double() + 0.3 * target / target.norm(dim=1, keepdim=True)
    torch.testing.assert_close(
        moved,
        (expected / expected.norm(dim=1, keepdim=True)).float(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_prototypes_are_of_augmented_samples(make_fleet, monkeypatch):
    fleet, varied = make_fleet(), []
    monkeypatch.setattr(
        fleet.resources.samples,
        "vary",
        lambda pool, seed, *key: varied.append(key) or pool,
    )
    fleet.class_means(fleet.setup.initial(), compute_unit_features)
    assert varied == [("class means", 1, client) for client in range(5)]


def test_at_rho_one_prototypes_stay(federate):
    moved, initial = prototypes(federate({"name": "fednh", "rho": 1.0}, rounds=1))
    assert torch.equal(moved, initial)
