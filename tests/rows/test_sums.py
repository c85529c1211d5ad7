"""Weighted sums in whole units: the same bits for any placement of rows on ranks, and
as exact as float64.
"""

from fractions import Fraction

import pytest
import torch

from hpcfl.rows import sums


def mean(parts, dtype=torch.float64):
    """Return the mean [k, width] of (rows, weights) of several ranks."""
    magnitudes = torch.stack([sums.find_magnitudes(*part) for part in parts]).amax(
        dim=0
    )
    totals = sum(weights.double().sum(dim=0) for _, weights in parts).tolist()
    largest = max(weights.max().item() for _, weights in parts if len(weights))
    units = sums.choose_units(magnitudes, largest, max(totals))
    return sums.divide_sums(
        sum(sums.sum_in_units(*part, units) for part in parts), units, totals, dtype
    )


def drawn(clients, width):
    """Return rows of all magnitudes, some of them zero, and weights."""
    generator = torch.Generator().manual_seed(0)
    sizes = 2.0 ** torch.randint(-60, 60, (clients, width), generator=generator)
    rows = torch.randn(clients, width, generator=generator) * sizes
    rows[torch.rand(clients, width, generator=generator) < 0.1] = 0
    return rows, torch.randint(1, 900, (clients, 1), generator=generator)


def dealt(rows, weights, cuts):
    return [
        (part, own)
        for part, own in zip(rows.split(cuts), weights.split(cuts), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "together"), [(1, 64), (64, 5), (1 << 17, 64), (1 << 17, 1)]
)
def test_any_ranks_and_any_order_give_the_same_bits(monkeypatch, block, together):
    rows, weights = drawn(12, 301)
    alone = mean([(rows, weights)])
    monkeypatch.setattr(sums, "BLOCK_FLOATS", block)
    monkeypatch.setattr(sums, "BLOCK_ROWS", together)
    order = torch.randperm(12)
    for cuts in ([12], [5, 7], [0, 3, 4, 5], [1] * 12):
        assert torch.equal(mean(dealt(rows[order], weights[order], cuts)), alone)


def test_a_mean_is_as_near_to_the_true_one_as_a_sum_in_float64():
    rows, weights = drawn(9, 50)
    found = mean([(rows, weights)])[0]
    for column, value in zip(rows.T.tolist(), found.tolist(), strict=True):
        products = [
            int(n) * Fraction(w) for n, w in zip(weights[:, 0], column, strict=True)
        ]
        error = abs(Fraction(value) * int(weights.sum()) - sum(products))
        assert error <= 9 * Fraction(2) ** -51 * 900 * max(
            abs(Fraction(w)) for w in column
        )


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 3e38])
def test_equal_rows_are_their_mean_and_so_is_one(size):
    row = size * torch.rand(200)
    for clients in (1, 3, 10):
        weights = torch.arange(1, clients + 1)[:, None]
        assert torch.equal(
            mean([(row.repeat(clients, 1), weights)], torch.float32)[0], row
        )


def test_a_tie_goes_to_the_even_neighbour_in_any_order():
    """Means weighted by samples are often exactly between two float32 numbers.

    With weights rounded to float64, rounding errors of a product would determine the
    last bit of such a column.
    """
    step = 2.0**-23
    rows = torch.tensor([[1.0, 1 + step], [1 + step, 1 + 2 * step]])
    weights = torch.tensor([[35], [35]])
    assert mean([(rows, weights)], torch.float32).tolist() == [[1.0, 1 + 2 * step]]


def test_the_largest_weights_do_not_overflow():
    rows = torch.full((4000, 3), 1.5)
    weights = torch.full((4000, 1), 1 << 29)
    assert torch.equal(mean([(rows, weights)]), torch.full((1, 3), 1.5).double())


def test_several_means_of_common_and_separate_rows():
    rows = torch.arange(6.0).view(3, 2)
    chosen = torch.tensor([[1, 0, 0], [0, 2, 0], [3, 0, 0]])
    found = mean([(rows, chosen)])
    assert (
        found[:2].tolist() == [[3.0, 4.0], [2.0, 3.0]] and found[2].isnan().all()
    )  # no client is in the third
    own = torch.stack([rows, 10 * rows, rows], dim=1)
    torch.testing.assert_close(
        mean([(own, chosen)])[:2], found[:2] * torch.tensor([[1.0], [10.0]])
    )


def test_inputs_stay_unchanged_and_rows_without_weight_are_skipped():
    rows = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]]).double()
    kept = rows.clone()
    assert mean([(rows, torch.tensor([[2], [0]]))]).tolist() == [[1.0, 2.0]]
    torch.testing.assert_close(
        rows,
        kept,
        rtol=0,
        atol=0,
        equal_nan=True,
    )
