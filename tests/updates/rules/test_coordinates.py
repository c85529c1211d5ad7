"""Medians and trimmed means, compared with values computed by hand."""

import torch
from playing import prepare_tiny

from hpcfl.updates.rules.coordinates import Median, TrimmedMean

FIVE = torch.tensor([[0.0, 0], [1, 0], [0, 1], [5, 5], [6, 5]])


def test_the_median_of_four_averages_the_middle_two():
    rows = torch.tensor([[10.0], [1], [3], [2]])
    assert Median().combine_rows(rows, None, None).tolist() == [2.5]
    assert Median().combine_rows(FIVE, None, None).tolist() == [1, 1]


def test_the_trimmed_mean_leaves_out_both_ends():
    found = TrimmedMean(trim=0.2).combine_rows(FIVE, None, None)
    assert found.tolist() == [2, 2]
    hundred = torch.arange(100.0)[:, None] ** 2
    middle = hundred[29:71].double().mean(dim=0)
    found = TrimmedMean(trim=0.29).combine_rows(hundred, None, None)
    torch.testing.assert_close(found, middle)


def test_a_run_notes_a_trimmed_mean_that_removes_nothing():
    """Of five clients the share 0.1 is none, and the share 0.2 is one."""
    method, noted = {"name": "fedavg", "weights": "uniform"}, []
    for trim in (0.0, 0.1, 0.2):
        rule = {"rule": "trimmed-mean", "trim": trim}
        prepared = prepare_tiny(method, aggregation=rule)
        noted.append("\n".join(prepared.hooks.notes(prepared.setup)))
    assert ["aggregation.trim" in notes for notes in noted] == [False, True, False]
