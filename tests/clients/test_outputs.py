"""Outputs and their means by class, compared with plain loops."""

import pytest
import torch
from methods.by_hand import build_model, train_samples

from hpcfl.clients import scoring

every_kernel = pytest.mark.parametrize("lanes", [1, 2, "auto"])


def features(model, x, lane):
    return model.features(x)


@every_kernel
def test_class_means_against_a_loop(make_fleet, rows_of, lanes):
    fleet = make_fleet(lanes=lanes)
    rows = rows_of(fleet)
    means = fleet.class_means(rows, features)
    assert means.shape == (5, 4, 6)
    for client in range(5):
        x, y = train_samples(fleet, client)
        found = build_model(fleet.setup, rows[client]).features(x)
        for c in range(4):
            expected = found[y == c].mean(0) if (y == c).any() else torch.zeros(6)
            torch.testing.assert_close(means[client, c], expected, rtol=1e-5, atol=1e-6)


@every_kernel
@pytest.mark.parametrize("block", [4, 128])
def test_outputs_against_a_loop(make_fleet, rows_of, monkeypatch, lanes, block):
    monkeypatch.setattr(scoring, "BLOCK", block)
    counts = [[8, 3, 0, 0], [0, 0, 0, 1], [2, 0, 0, 0], [0, 9, 7, 6]]
    fleet = make_fleet(counts, lanes=lanes)
    rows, pools = rows_of(fleet), fleet.resources.samples.train
    pools[2] = pools[2][:0]  # a client may have no samples
    outputs, labels, held = fleet.outputs(rows, features)
    assert outputs.shape == (4, 22, 6)
    assert held.sum(dim=1).tolist() == [11, 1, 0, 22]
    for client in range(4):
        x, y = train_samples(fleet, client)
        own = held[client]
        assert own[: len(y)].all() and torch.equal(labels[client, own], y)
        expected = build_model(fleet.setup, rows[client]).features(x)
        torch.testing.assert_close(outputs[client, own], expected)
        assert not outputs[client, ~own].any() and not labels[client, ~own].any()


def test_limited_outputs_are_sampled_again_in_each_round(make_fleet, rows_of):
    """The samples are in order and without repetition. Clients with fewer samples use
    all, and the number of places is the same for every client.
    """
    counts = [[8, 3, 0, 0], [0, 0, 0, 1], [0, 9, 7, 6]]

    def inputs(round, **keys):
        fleet = make_fleet(counts, round=round)
        return fleet.outputs(rows_of(fleet), lambda model, x, lane: x, **keys)

    everything, labels, _ = inputs(1)
    found, chosen_labels, held = inputs(1, most=5)
    assert found.shape == (3, 5, 5) and held.sum(dim=1).tolist() == [5, 1, 5]
    for client in range(3):
        same = (found[client, held[client], None] == everything[client]).all(dim=2)
        places = same.int().argmax(dim=1)
        assert same.any(dim=1).all() and (places.diff() > 0).all()
        assert torch.equal(chosen_labels[client, held[client]], labels[client, places])
    again, other = inputs(1, most=5)[0], inputs(2, most=5)[0]
    assert torch.equal(found, again) and not torch.equal(found, other)
    assert inputs(1, most=30)[0].shape == (3, 30, 5)
