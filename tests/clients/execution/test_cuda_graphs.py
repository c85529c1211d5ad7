"""Widths of graphs; ``tests/simulated_gpu/test_on_graphs.py`` captures graphs."""

import torch

from hpcfl.clients.execution.cuda_graphs import is_equal, round_up


def test_widths_are_few_and_at_most_a_quarter_too_many():
    widths = [round_up(lanes, 1000) for lanes in range(1, 101)]
    assert widths[:20] == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        10,
        12,
        12,
        14,
        14,
        16,
        16,
        20,
        20,
        20,
        20,
    ]
    # all to 8, multiples of four to 64, then 80, 96, 112
    assert len(set(widths)) == 8 + 4 * 3 + 3
    assert all(
        lanes <= wide <= 1.25 * lanes for lanes, wide in enumerate(widths, start=1)
    )
    assert [round_up(wide, 1000) for wide in widths] == widths


def test_no_more_lanes_are_computed_than_there_are():
    assert round_up(100, 100) == 100
    assert round_up(97, 100) == 100
    assert round_up(90, 100) == 96


def test_nan_equals_itself():
    one, other = torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])
    assert is_equal(one, one) and not is_equal(one, other) and not is_equal(other, one)
