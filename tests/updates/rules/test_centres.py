"""Geometric medians, centred clipping and bounded norms against values computed by
hand.
"""

import pytest
import torch

from hpcfl.updates.rules.centres import (
    clip_around,
    compute_clipped_mean,
    compute_geometric_median,
)

TRIANGLE = torch.tensor([[0.0, 0], [2, 0], [1, 6]])
HOSTILE = torch.tensor([[3.0, 4], [0, 1], [-6, 8]])


@pytest.mark.parametrize(
    ("steps", "height"), [(0, 2), (1, 1.310699), (2, 0.897025), (3, 0.697898)]
)
def test_weiszfeld_steps_lead_to_the_geometric_median(steps, height):
    found = compute_geometric_median(TRIANGLE, torch.ones(3), steps, 1e-6)
    assert found.tolist() == pytest.approx([1, height], abs=1e-6)


def test_weights_move_the_geometric_median():
    weights = torch.tensor([1.0, 1, 2])
    twice = torch.cat([TRIANGLE, TRIANGLE[2:]])
    weighted = compute_geometric_median(TRIANGLE, weights, 3, 1e-6)
    repeated = compute_geometric_median(twice, torch.ones(4), 3, 1e-6)
    assert torch.allclose(weighted, repeated, atol=1e-12)


def test_centred_clipping_moves_by_at_most_the_radius():
    start = torch.zeros(2, dtype=torch.float64)
    once = clip_around(HOSTILE, start, radius=1, steps=1)
    assert once.tolist() == pytest.approx([0, 0.866667], abs=1e-6)
    twice = clip_around(HOSTILE, start, radius=1, steps=2)
    assert twice.tolist() == pytest.approx([0.015959, 1.406974], abs=1e-6)
    assert torch.equal(clip_around(HOSTILE, once, radius=1, steps=1), twice)


def test_a_bound_on_norms_comes_before_the_mean():
    rows = torch.tensor([[3.0, 4], [0, 1], [6, 8], [0, 0]])
    found = compute_clipped_mean(rows, torch.ones(4), bound=5)
    assert found.tolist() == [6 / 4, 9 / 4]
    weighted = compute_clipped_mean(rows, torch.tensor([1, 1, 3, 0]), bound=5)
    assert weighted.tolist() == pytest.approx([12 / 5, 17 / 5], rel=1e-15)
