"""kNN-Per: methods-3.md §16."""

import math

import pytest
import torch
from by_hand import build_model, train_samples

from hpcfl.methods.knn_per import KNNPer

EVERY = torch.ones(1, 3, dtype=torch.bool)


def method(**keys):
    return KNNPer(name="knn-per", **keys)


def test_a_stored_sample_is_its_nearest_neighbour(make_fleet, rows_of):
    """With λ = 1, k = 1 and the training samples as test samples all predictions are
    correct.
    """
    # its features are the samples, which differ from one another
    fleet = make_fleet(hidden=())
    samples = fleet.resources.samples
    samples.parts["test"] = samples.train
    own = method(share=1.0, neighbours=1)
    own.score(fleet, {"model": rows_of(fleet)[0]}, rows_of(fleet)[0])
    right, count = fleet.results.scores["pre"]["accuracy"].T
    assert torch.equal(right, count) and torch.equal(count, fleet.samples)
    right, count = fleet.results.scores["global"]["accuracy"].T
    assert (right < count).any()


def test_votes_by_hand():
    """d = 2, σ = 1, δ² = (0, 2, 4): weights 1, e⁻¹, e⁻² of 1.503: 0.665, 0.245, 0.090."""
    store = torch.tensor([[0.0, 0], [1, 1], [2, 0]])
    labels, zero = torch.tensor([1, 0, 1]), torch.zeros(1, 2)
    total = 1 + math.exp(-1) + math.exp(-2)
    votes = method(neighbours=3).compute_votes(zero, store, labels, EVERY, 3)
    expected = [math.exp(-1) / total, (1 + math.exp(-2)) / total, 0]
    assert votes[0].tolist() == pytest.approx(expected)
    assert [round(vote, 3) for vote in expected] == [0.245, 0.755, 0]
    wide = method(neighbours=3, scale=2.0).compute_votes(zero, store, labels, EVERY, 3)
    assert wide[0, 0] == pytest.approx(
        math.exp(-0.5) / (1 + math.exp(-0.5) + math.exp(-1))
    )
    two = method(neighbours=2).compute_votes(zero, store, labels, EVERY, 3)
    assert two[0, 0] == pytest.approx(math.exp(-1) / (1 + math.exp(-1)))


def test_ties_far_samples_and_short_stores():
    """Among samples at equal distance the first one counts. All similarities may
    underflow. A store with fewer than k samples is used completely. Padding has no
    vote.
    """
    x, labels = torch.zeros(1, 1), torch.tensor([2, 0, 1])
    equal = torch.tensor([[1.0], [1], [1]])
    assert method(neighbours=1).compute_votes(x, equal, labels, EVERY, 3).tolist() == [
        [0, 0, 1]
    ]
    far = torch.tensor([[1e4], [2e4], [3e4]])
    assert method().compute_votes(x, far, labels, EVERY, 3).tolist() == [[0, 0, 1]]
    second = torch.tensor([[False, True, False]])
    assert method().compute_votes(x, equal, labels, second, 3).tolist() == [[1, 0, 0]]


def test_the_mix_is_of_probabilities(make_fleet, rows_of):
    """The result is compared with a loop over a client's samples; its store is shorter
    than those of other clients.
    """
    fleet = make_fleet()
    rows = rows_of(fleet)
    model = method(neighbours=2, share=0.25).client_model(fleet, {}, rows, False)
    state = dict(fleet.state)
    fleet.score("mixed", rows, model.predict, variables=model.variables)
    assert fleet.state == state
    samples, client = fleet.resources.samples, 0
    module = build_model(fleet.setup, rows[client])
    x, y = train_samples(fleet, client)
    test, labels = samples.take(samples.test[client])
    with torch.no_grad():
        store, found = module.features(x), module.features(test)
        plain = module(test).softmax(dim=1)
    loss = 0.0
    for own, probabilities, label in zip(found, plain, labels, strict=True):
        squares = (store - own).square().sum(dim=1)
        nearest = squares.argsort()[:2]
        weights = (-squares[nearest] / 6).exp()
        near = weights[y[nearest] == label].sum() / weights.sum()
        loss -= (0.25 * near + 0.75 * probabilities[label]).log()
    torch.testing.assert_close(
        fleet.results.scores["mixed"]["loss"][client, 0].float(),
        loss,
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_tuned_share_is_the_smallest_of_the_best():
    """Samples 0 and 1 are each other's neighbours and of one class; samples 2 and 3 are
    of different classes. The model is wrong by log 3 on 0 and 1. The neighbours change
    this from 3/4 (1 − λ) < 1/4 (1 − λ) + λ on, λ > 1/3: 0.4. The model is correct on 2
    and 3, and the neighbours change this from the same λ on. So λ = 0.4 for 0 and 1
    only, and 0 for 2 and 3 only. For all four samples two are correct with any λ, so λ
    = 0.
    """
    features = torch.tensor([[0.0], [1], [100], [101]])
    labels = torch.tensor([0, 0, 0, 1])
    against = torch.tensor([0, math.log(3)])
    logits = torch.stack([against, against, against.flip(0), against])
    everything, own = torch.ones(4, dtype=torch.bool), method(neighbours=1)

    def choose_share(chosen):
        held = everything[: len(chosen)]
        return own.choose_share(features[chosen], labels[chosen], held, logits[chosen])

    assert choose_share([0, 1]) == 0.4
    assert choose_share([2, 3]) == choose_share([0, 1, 2, 3]) == 0
    assert choose_share([0]) == 0  # a client without remaining samples


def test_a_store_has_at_most_its_capacity(make_fleet, rows_of):
    fleet = make_fleet()
    stores = [
        method(capacity=capacity).client_model(fleet, {}, rows_of(fleet), False)
        for capacity in (7, 1000)
    ]
    assert stores[0].variables["held"].sum(dim=1).tolist() == [7] * 5
    # the largest client of the experiment has 20
    assert stores[1].variables["features"].shape == (5, 20, 6)
