"""FedProto: methods-1.md §15. Clients send mean features of classes instead of weights."""

from types import SimpleNamespace

import pytest
import torch
from every_method import kind
from torch.nn.functional import cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.fedproto import FedProto, compute_features, predict_by_prototypes
from hpcfl.models.mlp import MLP

COUNTS = [[8, 3, 0, 0], [0, 9, 2, 0], [1, 0, 6, 0]]


def method(**keys):
    return FedProto(name="fedproto", **keys)


@pytest.mark.parametrize("name", ["fedproto", "fedpac"])
def test_loss_by_hand(name):
    model, x, y = MLP((5,), 3, hidden=(4,)), torch.randn(3, 5), torch.tensor([0, 2, 2])
    lane = Lane(prototypes=torch.randn(3, 4), present=torch.tensor([True, True, False]))
    # Only the class of the first sample has a prototype; the mean is over 3 samples and
    # 4 coordinates.
    expected = cross_entropy(model(x), y) + 0.5 * (
        model.features(x)[0] - lane.prototypes[0]
    ).square().sum() / (3 * 4)
    found = kind(name)(name=name, lam=0.5).loss(model, Batch(x, y), lane)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("weights", "first"), [("uniform", [2.0, 3.0]), ("samples", [1.5, 2.5])]
)
def test_mean_over_clients_that_hold_the_class(arrived, cohort, weights, first):
    server = {
        "prototypes": torch.full((3, 2), 7.0),
        "present": torch.zeros(3, dtype=torch.bool),
    }
    own, clients = method(weights=weights), cohort([[6, 0, 0], [2, 1, 0]])
    means = torch.tensor([[[1.0, 2], [0, 0], [0, 0]], [[3, 4], [5, 6], [0, 0]]])
    message = own.upload(SimpleNamespace(counts=clients.counts), means)
    own.aggregate(server, clients, arrived(message))
    # a class that no client has keeps its prototype
    assert server["prototypes"].tolist() == [first, [5, 6], [7, 7]]
    assert server["present"].tolist() == [True, True, False]


def test_predicts_the_nearest_present_prototype():
    model = MLP((2,), 3, hidden=(2,))
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    found = model.features(x)
    lane = Lane(
        prototypes=torch.stack([found[0], found[1] + 0.01, found[2]]),
        present=torch.tensor([False, True, True]),
    )
    scores = predict_by_prototypes(model, x, lane)
    distances = torch.cdist(found, lane.prototypes)
    assert torch.equal(scores.argmax(1), distances[:, 1:].argmin(1) + 1)
    assert scores.isfinite().all()


def test_the_trained_classifier_is_scored_too(federate):
    assert "classifier/mean" in federate("fedproto", rounds=1).values


def test_before_the_first_exchange_the_classifier_predicts():
    """Other codes report a score of 0 then."""
    model, x = MLP((5,), 3, hidden=(4,)), torch.randn(6, 5)
    lane = Lane(prototypes=torch.zeros(3, 4), present=torch.zeros(3, dtype=torch.bool))
    assert torch.equal(predict_by_prototypes(model, x, lane), model(x))


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_prototypes_come_from_the_trained_model(make_fleet, rows_of, name):
    fleet = make_fleet()
    fleet.state["model"] = rows_of(fleet)
    inbox = {"prototypes": torch.zeros(4, 6), "present": torch.zeros(4).bool()}
    sent = kind(name)(name=name).update(fleet, inbox)["prototypes"].tensor
    means = fleet.class_means(fleet.state["model"], compute_features)
    assert torch.equal(sent.view_as(means), means)
