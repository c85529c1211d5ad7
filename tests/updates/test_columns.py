"""Computations on blocks of columns, compared with those on whole rows."""

import torch

from hpcfl.updates import columns


def test_close_rows_keep_the_digits_of_their_distances():
    generator = torch.Generator().manual_seed(1)
    far = 1e6 * torch.randn(1, 10_000, generator=generator, dtype=torch.float64)
    rows = far + 1e-3 * torch.randn(4, 10_000, generator=generator, dtype=torch.float64)
    exact = (rows[:, None] - rows).square().sum(dim=2)
    assert torch.allclose(columns.compute_squares(rows), exact, rtol=1e-9)


def test_equal_rows_have_no_distance():
    squares = columns.compute_squares(torch.full((3, 5000), 0.1))
    assert torch.equal(squares, torch.zeros(3, 3, dtype=torch.float64))


def test_blocks_are_joined_in_the_order_of_columns():
    rows = torch.randn(3, columns.COLUMNS + 5)
    found = columns.join_blocks(columns.find_median, rows)
    assert torch.equal(found, rows.double().median(dim=0).values)
