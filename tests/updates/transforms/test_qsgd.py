"""Entries rounded to levels of the norm."""

import torch

from hpcfl.updates.transforms.qsgd import quantise


def test_levels_are_rounded_by_the_draws():
    updates = torch.tensor([[3.0, -4, 0, 0], [0, 0, 0, 0]])
    uniforms = torch.tensor([0.5, 0.1, 0.9, 0.3]).double().expand(2, -1)
    # ‖v‖ = 5, levels 2.4, 3.2, 0, 0, rounded to 2, 4, 0, 0
    assert quantise(updates, 4, uniforms).tolist() == [[2.5, -5, 0, 0], [0, 0, 0, 0]]


def test_a_row_does_not_depend_on_other_rows():
    updates = torch.randn(3, 1000)
    uniforms = torch.rand(3, 1000).double()
    together = quantise(updates, 7, uniforms)
    for row in range(3):
        one = slice(row, row + 1)
        assert torch.equal(quantise(updates[one], 7, uniforms[one]), together[one])
