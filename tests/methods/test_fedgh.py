"""FedGH: methods-3.md §12."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from hpcfl.methods.base import Cohort
from hpcfl.methods.fedgh import FedGH
from hpcfl.methods.fedproto import compute_features


@pytest.fixture
def trained_head(make_fleet):
    """Return ``trained_head(counts, means, …)``, which returns the server's head,
    weight [K, d] and bias [K], before and after training on the class means [n, K, d]
    of clients with these counts.
    """

    def train(counts, means, **keys):
        setup = make_fleet().setup  # mini-batches of four
        counts = torch.tensor(counts).double()
        cohort = Cohort(np.arange(len(counts)), counts, setup, 1)
        server = {"model": setup.initial()}
        before = setup.layout.split(server["model"])
        method = FedGH(name="fedgh", **keys)
        method.aggregate(server, cohort, {"means": means.flatten(1)})
        after = setup.layout.split(server["model"])
        body = setup.layout.list_members(("body",))
        assert all(torch.equal(before[name], after[name]) for name in body)
        return [
            (layers["head.weight"], layers["head.bias"]) for layers in (before, after)
        ]

    return train


def test_without_server_epochs_the_head_is_the_initial_one(federate):
    """Local training begins under g⁰ in every round."""
    still = {"name": "fedgh", "server_epochs": 0}
    played = federate(still, rounds=2)
    setup, layout = played.prepared.setup, played.prepared.setup.layout
    initial = setup.initial()
    assert torch.equal(played.server["model"], initial)
    rows = initial
    for round in (1, 2):
        fleet = played.prepared.make_fleet(np.arange(5), round, False)
        trained = fleet.train(rows)
        head = initial[layout.columns("head")].expand(5, -1)
        rows = torch.cat([trained[:, layout.columns("body")], head], dim=1)
    assert torch.equal(played.clients["body"], rows[:, layout.columns("body")])


def test_one_step_of_the_head_by_hand(trained_head):
    """Each client's mean μ of a class counts as one sample; means of absent classes are
    ignored. With one full batch of the three means row j changes by
    −η times the gradient, (η/3) Σ (1[j = class] − p(j)) μ, and bias j by the same
    without μ.
    """
    means = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    (weight, bias), (moved, moved_bias) = trained_head(
        [[1, 9, 0, 0], [0, 5, 0, 0]], means, server_epochs=1, server_lr=0.5
    )
    inputs = torch.stack([means[0, 0], means[0, 1], means[1, 1]])
    p = (inputs @ weight.T + bias).softmax(dim=1)
    error = one_hot(torch.tensor([0, 1, 1]), 4) - p
    torch.testing.assert_close(moved - weight, 0.5 / 3 * error.T @ inputs)
    torch.testing.assert_close(moved_bias - bias, 0.5 / 3 * error.sum(dim=0))


def test_without_uploads_the_head_stays(trained_head):
    before, after = trained_head([[0, 0, 0, 0]], torch.ones(1, 4, 6))
    assert all(map(torch.equal, before, after))


def test_class_means_are_those_of_the_trained_model(make_fleet, rows_of):
    fleet = make_fleet()
    rows = rows_of(fleet)
    sent = FedGH(name="fedgh").upload(fleet, {}, rows)["means"].tensor
    assert torch.equal(sent, fleet.class_means(rows, compute_features).flatten(1))
