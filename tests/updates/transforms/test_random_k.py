"""Entries at random positions, the same for all clients of a round."""

import torch

from hpcfl.rows.randomness import generator
from hpcfl.updates.transforms.random_k import draw_positions, keep_positions


def test_entries_at_the_positions_are_scaled():
    updates = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    kept = keep_positions(updates, torch.tensor([1, 3]), 2.0)
    assert kept.tolist() == [[0, 4, 0, 8], [0, 12, 0, 16]]


def test_positions_are_drawn_anew_in_each_round():
    drawn = draw_positions(100, 10, generator(3, "k", 1))
    assert len(set(drawn.tolist())) == 10
    assert torch.equal(drawn, draw_positions(100, 10, generator(3, "k", 1)))
    assert not torch.equal(drawn, draw_positions(100, 10, generator(3, "k", 2)))


def test_the_mean_of_many_draws_is_the_vector():
    vector = torch.tensor([[3.0, -4, 0, 1, 2]])
    rows = []
    for round in range(2000):
        positions = draw_positions(5, 2, generator(1, round))
        rows.append(keep_positions(vector, positions, 5 / 2)[0])
    draws = torch.stack(rows).double()
    error = (draws.mean(dim=0) - vector[0]).abs()
    assert (error <= 4 * draws.std(dim=0) / 2000**0.5 + 1e-12).all()
    assert (draws.std(dim=0)[vector[0] != 0] > 0).all()
