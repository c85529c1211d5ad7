"""Geometric medians and centred clipping against values computed by hand."""

import pytest
import torch

from hpcfl.updates.rules.centres import (
    clip_around,
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
