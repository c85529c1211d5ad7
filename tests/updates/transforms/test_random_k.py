"""Entries at random positions, the same for all clients of a round."""

import torch

from hpcfl.rows.randomness import generator
from hpcfl.updates.transforms.random_k import draw_positions, keep_positions


def test_entries_at_the_positions_are_scaled():
    updates = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    kept = keep_positions(updates, torch.tensor([1, 3]), 2.0)
    assert kept.tolist() == [[0, 4, 0, 8], [0, 12, 0, 16]]


def test_positions_are_drawn_again_in_each_round():
    drawn = draw_positions(100, 10, generator(3, "k", 1))
    assert len(set(drawn.tolist())) == 10
    assert torch.equal(drawn, draw_positions(100, 10, generator(3, "k", 1)))
    assert not torch.equal(drawn, draw_positions(100, 10, generator(3, "k", 2)))


def test_attackers_scale_their_entries_once(federate):
    """An attacker that sends its own update changes nothing."""
    method = {"name": "fedavg", "weights": "uniform"}
    sections = {"compression": {"kind": "random-k", "share": 0.5}, "rounds": 1}
    honest = federate(method, **sections)
    same = {"kind": "scale", "factor": 1.0, "clients": [1]}
    attacked = federate(method, attack=same, **sections)
    torch.testing.assert_close(attacked.server["model"], honest.server["model"])
