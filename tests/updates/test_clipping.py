"""Clip of updates, by hand."""

import math

import pytest
import torch

from hpcfl.updates.clipping import clip_updates, split_noise

WHOLE = [slice(0, 2)]


def test_the_clip_by_hand():
    updates = torch.tensor([[3.0, 4], [0, 1], [6, 8], [0, 0], [math.nan, 1]])
    clipped, norms, changed = clip_updates(updates, 5.0, WHOLE)
    expected = [[3, 4], [0, 1], [3, 4], [0, 0], [0, 0]]
    torch.testing.assert_close(clipped, torch.tensor(expected).float())
    assert norms.tolist() == [5, 1, 10, 0, 0]
    assert changed.tolist() == [False, False, True, False, False]
    alone, _, _ = clip_updates(updates[2:3], 5.0, WHOLE)
    assert torch.equal(alone, clipped[2:3])


def test_layers_are_clipped_separately():
    """With norm 5 in two layers each layer is clipped to 5/√2, also of an update whose
    norm is below 5.
    """
    layers = [slice(0, 2), slice(2, 3)]
    updates = torch.tensor([[6.0, 8, 1], [0, 4, 1], [3, 1, 0]])
    clipped, norms, changed = clip_updates(updates, 5.0, layers)
    bound = 5 / math.sqrt(2)
    expected = [[0.6 * bound, 0.8 * bound, 1], [0, bound, 1], [3, 1, 0]]
    torch.testing.assert_close(clipped, torch.tensor(expected))
    assert norms.tolist() == pytest.approx([math.sqrt(n) for n in (101, 17, 10)])
    assert changed.tolist() == [True, True, False]


def test_the_noise_is_split_so_that_both_releases_cost_the_multiplier():
    assert split_noise(1.0, 5.0) == pytest.approx(1.005038, abs=1e-6)
    assert split_noise(2.0, 5.0) == pytest.approx(2.041241, abs=1e-6)
    assert split_noise(0.0, 5.0) == 0
