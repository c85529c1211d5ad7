"""Geometric medians and centred clipping, compared with values computed by hand."""

import numpy as np
import pytest
import torch

from hpcfl.updates.base import Context
from hpcfl.updates.rules.centres import CenteredClip, GeometricMedian

TRIANGLE = torch.tensor([[0.0, 0], [2, 0], [1, 6]])
HOSTILE = torch.tensor([[3.0, 4], [0, 1], [-6, 8]])


def find_median(rows, weights, steps):
    rule = GeometricMedian.model_construct(steps=steps, smallest=1e-6)
    return rule.combine_rows(rows, weights, None)


def clip_around(start, steps):
    context = Context(0, 1, np.arange(3), 3, memory={"centre": start})
    return CenteredClip(radius=1, steps=steps).combine_rows(HOSTILE, None, context)


@pytest.mark.parametrize(
    ("steps", "height"), [(0, 2), (1, 1.310699), (2, 0.897025), (3, 0.697898)]
)
def test_weiszfeld_steps_lead_to_the_geometric_median(steps, height):
    found = find_median(TRIANGLE, torch.ones(3), steps)
    assert found.tolist() == pytest.approx([1, height], abs=1e-6)


def test_weights_move_the_geometric_median():
    weights = torch.tensor([1.0, 1, 2])
    twice = torch.cat([TRIANGLE, TRIANGLE[2:]])
    weighted = find_median(TRIANGLE, weights, 3)
    repeated = find_median(twice, torch.ones(4), 3)
    assert torch.allclose(weighted, repeated, atol=1e-12)


def test_centred_clipping_moves_by_at_most_the_radius():
    start = torch.zeros(2, dtype=torch.float64)
    once = clip_around(start, 1)
    assert once.tolist() == pytest.approx([0, 0.866667], abs=1e-6)
    twice = clip_around(start, 2)
    assert twice.tolist() == pytest.approx([0.015959, 1.406974], abs=1e-6)
    assert torch.equal(clip_around(once, 1), twice)
