"""Krum, multi-Krum and Bulyan, compared with values computed by hand."""

import pytest
import torch

from hpcfl.updates.columns import compute_squares
from hpcfl.updates.rules.neighbours import (
    Bulyan,
    Krum,
    MultiKrum,
    rank_rows,
    score_rows,
    select_repeatedly,
)

FIVE = torch.tensor([[0.0, 0], [1, 0], [0, 1], [5, 5], [6, 5]])
SEVEN = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1], [0.5, 2], [10, 10], [10, 11]])


def test_krum_chooses_the_least_sum_of_distances_to_the_nearest_rows():
    scores = score_rows(compute_squares(FIVE), 5 - 1 - 2)
    assert scores.tolist() == [2, 3, 3, 42, 51]
    found = Krum(f=1).combine_rows(FIVE, None, None)
    assert found.tolist() == FIVE[0].tolist()


def test_the_first_of_equal_scores_is_selected():
    scores = score_rows(compute_squares(SEVEN), 7 - 2 - 2)
    assert scores.tolist() == [4, 4, 3.25, 3.25, 6.75, 317.25, 353.25]
    assert rank_rows(SEVEN, 2)[0] == 2


def test_multi_krum_averages_the_best_rows():
    found = MultiKrum(f=1, m=3).combine_rows(FIVE, None, None)
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3], rel=1e-15)


def test_bulyan_selects_one_row_after_the_other():
    selected = select_repeatedly(compute_squares(SEVEN), tolerated=1, count=5)
    assert selected == [2, 3, 0, 5, 1]
    found = Bulyan(f=1).combine_rows(SEVEN, None, None)
    assert found.tolist() == pytest.approx([2 / 3, 2 / 3], rel=1e-15)
