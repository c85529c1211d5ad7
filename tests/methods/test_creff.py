"""CReFF: methods-2.md §10."""

import pytest
import torch
from by_hand import build_model, train_samples
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from hpcfl.methods.base import Cohort
from hpcfl.methods.creff import CReFF, compute_mismatch
from hpcfl.models.mlp import MLP

QUICK = {
    "name": "creff",
    "features_each": 5,
    "match_steps": 3,
    "head_epochs": 4,
}


def head_gradient(weight, bias, features, labels):
    """Return ∂CE/∂(weight, bias) as a row, by autograd."""
    given = [weight] if bias is None else [weight, bias]
    leaves = [part.detach().requires_grad_() for part in given]
    logits = torch.nn.functional.linear(features, *leaves)
    slopes = torch.autograd.grad(cross_entropy(logits, labels), leaves)
    return torch.cat([part.flatten() for part in slopes])


@pytest.mark.parametrize("biased", [True, False])
def test_the_batch_behind_a_gradient_matches_it(biased):
    generator = torch.Generator().manual_seed(2)
    classes, width, each = 7, 3, 5  # more classes than features
    weight = torch.randn(classes, width, generator=generator)
    bias = torch.randn(classes, generator=generator) if biased else None
    head = torch.cat([weight.flatten(), *([bias] if biased else [])])
    features, labels = (
        torch.randn(2, each, width, generator=generator),
        torch.tensor([1, 4]),
    )
    wanted = torch.stack(
        [
            head_gradient(weight, bias, features[i], labels[i].repeat(each))
            for i in range(2)
        ]
    )
    # Each row's cosine is 1 or −1, up to the constant that is added to the lengths. A
    # scaled gradient has the same direction.
    rows = 2 * (classes + biased)
    for scale in (1, 10):
        for sign, expected in ((1, 0), (-1, 2 * rows)):
            found = compute_mismatch(
                features, labels, classes, head, sign * scale * wanted
            )
            assert found == pytest.approx(expected, abs=0.03)
    other = torch.randn(2, each, width, generator=generator)
    assert compute_mismatch(other, labels, classes, head, wanted) > 0.1


def test_features_of_absent_classes_are_unchanged(federate):
    played = federate(QUICK, [[3, 0, 0, 2], [0, 0, 0, 4]], rounds=2)
    features, setup = played.server["features"].view(4, 5, -1), played.prepared.setup
    initial = setup.normal(20, 6, key=("features",)).view(4, 5, -1)
    assert torch.equal(features[[1, 2]], initial[[1, 2]])
    assert (features[[0, 3]] != initial[[0, 3]]).any(dim=2).all()


def test_clients_send_the_gradients_of_their_classes(make_fleet, rows_of):
    """With few samples a draw contains all samples of a class. The result is compared
    with autograd on the received body under h̃.
    """
    counts = [[3, 2, 0, 0], [0, 1, 4, 2]]
    fleet = make_fleet(counts)
    model, retrained = rows_of(fleet)[0], rows_of(fleet, 8)[0]
    layout = fleet.layout
    head = retrained[layout.columns("head")]
    method = CReFF(name="creff")
    inbox = method.prepare(fleet, {"model": model, "head": head})
    message = method.update(fleet, inbox)
    sent = message["gradients"].tensor.view(2, 4, -1)
    body = build_model(fleet.setup, torch.cat([model[layout.columns("body")], head]))
    for client in range(2):
        x, y = train_samples(fleet, client)
        hidden = body.features(x).detach()
        for label in range(4):
            if counts[client][label]:
                chosen = y == label
                expected = head_gradient(
                    body.head.weight, body.head.bias, hidden[chosen], y[chosen]
                )
                torch.testing.assert_close(sent[client, label], expected)
            else:
                assert (sent[client, label] == 0).all()
    assert message["gradients"].floats.tolist() == [2 * 28, 3 * 28]
    # the mean of a class covers the clients with this class, without weights by samples
    assert message["gradients"].weights.tolist() == [[1, 1, 0, 0], [0, 1, 1, 1]]


def test_fresh_head_learns_the_synthetic_features(make_fleet):
    """On well separated features the retrained head predicts all classes, and a second
    round gives another head.
    """
    fleet = make_fleet()
    setup = fleet.setup
    method = CReFF(name="creff", features_each=10, head_epochs=20, head_lr=0.1)
    first, second = (Cohort(fleet.ids, fleet.counts, setup, round) for round in (1, 2))
    labels = torch.arange(4).repeat_interleave(10)
    features = 5 * one_hot(labels, 6).float() + 0.1 * setup.normal(40, 6, key=("test",))
    head = method.train_head(first, features)
    weight, bias = head[:24].view(4, 6), head[24:]
    assert torch.equal((features @ weight.T + bias).argmax(dim=1), labels)
    assert torch.equal(head, method.train_head(first, features))
    assert not torch.equal(head, method.train_head(second, features))


def test_the_body_is_scored_under_the_retrained_head(federate):
    values = federate(QUICK, rounds=2).values
    average = federate("fedavg", rounds=2).values
    for column in ("pre", "global"):
        assert (
            values[f"clients/{column}/loss"] != average["clients/global/loss"]
        ).all()


def bias_free(shape, classes):
    model = MLP(shape, classes, hidden=(6,))
    model.head = nn.Linear(6, classes, bias=False)
    return model


def test_without_a_bias_the_fresh_head_has_none(federate):
    played = federate(QUICK, rounds=1, model={"name": "test_creff:bias_free"})
    assert played.server["head"].shape == (4 * 6,)
