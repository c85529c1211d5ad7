"""Medians and trimmed means against values computed by hand."""

import torch

from hpcfl.updates.rules.coordinates import compute_median, compute_trimmed_mean

FIVE = torch.tensor([[0.0, 0], [1, 0], [0, 1], [5, 5], [6, 5]])


def test_of_four_rows_the_median_is_the_mean_of_the_middle_two():
    rows = torch.tensor([[10.0], [1], [3], [2]])
    assert compute_median(rows).tolist() == [2.5]
    assert compute_median(FIVE).tolist() == [1, 1]


def test_the_trimmed_mean_leaves_out_both_ends():
    assert compute_trimmed_mean(FIVE, 0.2).tolist() == [2, 2]
    hundred = torch.arange(100.0)[:, None] ** 2
    middle = hundred[29:71].double().mean(dim=0)
    torch.testing.assert_close(compute_trimmed_mean(hundred, 0.29), middle)
