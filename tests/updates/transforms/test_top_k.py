"""The largest absolute values of each row."""

import torch

from hpcfl.updates.transforms.top_k import keep_largest


def test_the_largest_absolute_values_are_kept():
    updates = torch.tensor([[4.0, -3, 2, 1, 0], [1, 1, -4, 1, 1]])
    kept = keep_largest(updates, 2)
    # of four equal values the first
    assert kept.tolist() == [[4, -3, 0, 0, 0], [1, 0, -4, 0, 0]]


def test_as_many_entries_are_kept_as_asked_for_whatever_is_equal():
    updates = torch.randint(-2, 3, (40, 30)).float()
    for k in (1, 7, 30):
        order = updates.abs().sort(dim=1, descending=True, stable=True).indices
        kept = torch.zeros_like(updates).scatter(
            1, order[:, :k], updates.gather(1, order[:, :k])
        )
        assert torch.equal(keep_largest(updates, k), kept)
