"""Bounded norms, compared with values computed by hand, and in whole runs."""

import torch
from playing import play

from hpcfl.updates.rules.norm_bound import NormBound


def test_updates_are_clipped():
    rows = torch.tensor([[3.0, 4], [0, 1], [6, 8], [0, 0]])
    clipped = NormBound(bound=5).bound_updates(rows)
    assert clipped.tolist() == [[3, 4], [0, 1], [3, 4], [0, 0]]


def test_the_server_moves_by_no_more_than_the_bound(tmp_path):
    def move(bound):
        rule = {"rule": "norm-bound", "bound": bound}
        folder = tmp_path / str(bound)
        played = play(folder, "fedavg", rounds=1, aggregation=rule)
        initial = played.prepared.setup.initial()
        return (played.server["model"] - initial).norm().item()

    assert 0.005 < move(0.01) <= 0.01 * (1 + 1e-6)
    assert move(100.0) > 0.02
