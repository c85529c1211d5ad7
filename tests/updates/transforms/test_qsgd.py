"""Entries rounded to levels of the norm."""

import numpy as np
import torch

from hpcfl.updates.transforms.qsgd import quantise


def test_levels_are_rounded_by_the_draws():
    updates = torch.tensor([[3.0, -4, 0, 0], [0, 0, 0, 0]])
    uniforms = torch.tensor([0.5, 0.1, 0.9, 0.3]).double().expand(2, -1)
    # ‖v‖ = 5, levels 2.4, 3.2, 0, 0, rounded to 2, 4, 0, 0
    assert quantise(updates, 4, uniforms).tolist() == [[2.5, -5, 0, 0], [0, 0, 0, 0]]


def test_the_mean_of_many_draws_is_the_vector():
    random = np.random.default_rng(0)
    vector = torch.tensor([[3.0, -4, 0, 0, 0.5]])
    uniforms = torch.from_numpy(random.random((2000, 5)))
    draws = quantise(vector.expand(2000, -1), 7, uniforms).double()
    error = (draws.mean(dim=0) - vector[0]).abs()
    assert (error <= 4 * draws.std(dim=0) / 2000**0.5 + 1e-12).all()
    squares = vector.norm() ** 2
    mean_error = (draws - vector).square().sum(dim=1).mean()
    assert 0 < mean_error <= min(5 / 49, 5**0.5 / 7) * squares


def test_a_row_does_not_depend_on_other_rows():
    updates = torch.randn(3, 1000)
    uniforms = torch.rand(3, 1000).double()
    together = quantise(updates, 7, uniforms)
    for row in range(3):
        one = slice(row, row + 1)
        assert torch.equal(quantise(updates[one], 7, uniforms[one]), together[one])
