"""FedGH: methods-3.md §12."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

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
        body = setup.layout.members(("body",))
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
    """With one mean μ_k per class and one full batch, row j changes by −η times the
    gradient, (η/K) Σ_k (1[j = k] − p_k(j)) μ_k, and bias j by the same without μ_k.
    """
    means = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(1))
    (weight, bias), (moved, moved_bias) = trained_head(
        [[2, 2, 2, 2]], means, server_epochs=1, server_lr=0.5
    )
    p = (means[0] @ weight.T + bias).softmax(dim=1)
    error = one_hot(torch.arange(4), 4) - p  # [k, j]
    torch.testing.assert_close(moved - weight, 0.5 / 4 * error.T @ means[0])
    torch.testing.assert_close(moved_bias - bias, 0.5 / 4 * error.sum(dim=0))


def test_means_of_classes_are_alike_whatever_their_samples(trained_head):
    """Each client's mean of a class is one sample; means of absent classes are ignored."""
    means = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    counts, keys = [[1, 9, 0, 0], [0, 5, 0, 0]], {"server_epochs": 1, "server_lr": 0.5}
    (weight, bias), found = trained_head(counts, means, **keys)
    leaves = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    inputs = torch.stack([means[0, 0], means[0, 1], means[1, 1]])
    logits = inputs @ leaves[0].T + leaves[1]
    loss = cross_entropy(logits, torch.tensor([0, 1, 1]))
    for start, after, gradient in zip(
        (weight, bias), found, torch.autograd.grad(loss, leaves), strict=True
    ):
        torch.testing.assert_close(after, start - 0.5 * gradient)


def test_without_uploads_the_head_stays(trained_head):
    before, after = trained_head([[0, 0, 0, 0]], torch.ones(1, 4, 6))
    assert all(map(torch.equal, before, after))


def test_a_head_goes_down_and_means_of_held_classes_go_up(federate):
    played = federate({"name": "fedgh", "server_epochs": 1}, rounds=1)
    assert (played.values["floats_down"][0] == 6 * 4 + 4).all()
    held = (played.prepared.setup.counts > 0).sum(dim=1)
    assert played.values["clients/floats_up"][0].tolist() == (held * 7).tolist()


def test_class_means_are_those_of_the_trained_model(make_fleet, rows_of):
    fleet = make_fleet()
    rows = rows_of(fleet)
    sent = FedGH(name="fedgh").upload(fleet, {}, rows)["means"].tensor
    assert torch.equal(sent, fleet.class_means(rows, compute_features).flatten(1))
