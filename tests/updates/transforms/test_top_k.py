"""The largest absolute values of each row."""

import torch

from hpcfl.updates.transforms.top_k import keep_largest


def test_the_largest_absolute_values_are_kept():
    updates = torch.tensor([[4.0, -3, 2, 1, 0], [1, 1, -4, 1, 1]])
    kept = keep_largest(updates, 2)
    # of four equal values the first
    assert kept.tolist() == [[4, -3, 0, 0, 0], [1, 0, -4, 0, 0]]
