"""Weighted sums Σ_i s_i·w_i of rows w_i, whose bits do not depend on how the rows are
dealt to ranks.

Each rank adds up its own rows, and then the ranks' sums are added. A sum of
floating-point numbers would depend on the order, and so on the number of ranks. Here
every product s_i·w_i is first rounded to a whole number of units, and whole numbers in
int64 add up to the same in any order. Each column has a unit of its
own, a power of two: about 2^−51 of the largest product that there may be in the column
on any rank, so that rounding loses no more than a sum in float64 does.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpcfl.rows import mixing, pinned

# Of a product in units. float64 has 53, of which rounding by an anchor takes two.
PRODUCT_BITS = 51
# Of a sum in units. int64 has 63 beside the sign, of which one is for what rounding adds.
SUM_BITS = 62
# Of float64: the bits of its fraction, and what is added to its exponent.
MANTISSA = 52
BIAS = 1023
# Numbers of float64 in a block: 4 MB, as long pieces of rows matter more than a core's
# cache. Of more rows the pieces would be short, which files suffer from most.
BLOCK_FLOATS = 1 << 19
BLOCK_ROWS = 64
# The exponent of a column of zeros; numbers below 2^LOWEST may be rounded to zero.
LOWEST = -900


def mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean ``[width]`` of ``rows`` [n, width], with the same bits as if
    ranks shared the rows.

    weights: whole numbers [n].
    """
    total = weights.sum().item()
    table = weights[:, None]  # of one sum, k = 1
    unit = units(magnitudes(rows, table), weights.max().item(), total)
    summed = sums(rows, table, unit)
    return means(summed, unit, [total], rows.dtype)[0]


def magnitudes(rows: Tensor, weights: Tensor) -> Tensor:
    """For each column the smallest e with |w| < 2^e for all rows that count, int16
    ``[k, width]``.

    rows: ``[n, width]``, the same for all k sums, or ``[n, k, width]``, rows of its own
        for each.
    weights: whole numbers [n, k]; a row with weight 0 does not count, and may hold NaN.
    """
    largest = rows.new_zeros(weights.shape[1], rows.shape[-1])
    for number, columns, block, _ in _blocks(rows, weights):
        so_far = largest[number, columns]
        torch.maximum(so_far, block.abs().amax(dim=0), out=so_far)
    # float64 holds all of them, and its exponent is read off its bits, much faster than
    # ``frexp`` computes it.
    bits = largest.double().view(torch.int64)
    exponents = (bits >> MANTISSA) - (BIAS - 1)
    return exponents.clamp_(min=LOWEST).to(torch.int16)


def units(magnitudes: Tensor, largest: float, total: float) -> Tensor:
    """The exponents of the columns' units, int16 ``[k, width]``.

    Args:
        magnitudes: the highest of all ranks ``[k, width]``.
        largest: the largest weight on any rank.
        total: the largest of the k sums of weights over all ranks.
    """
    for_products = int(largest).bit_length() - PRODUCT_BITS
    for_sums = int(total).bit_length() - SUM_BITS
    return magnitudes + max(for_products, for_sums)


def sums(rows: Tensor, weights: Tensor, units: Tensor) -> Tensor:
    """The weighted sums of the rows in whole units, int64 ``[k, width]``.

    rows, weights: as for ``magnitudes``. units: the exponents that ``units`` gives.
    """
    units = pinned.on_device(units, rows.device)
    total = torch.zeros(units.shape, dtype=torch.int64, device=rows.device)
    # All blocks use it: new memory would cost more than the sums.
    scratch = torch.empty(0, dtype=torch.float64, device=rows.device)
    for number, columns, block, of_rows in _blocks(rows, weights):
        if scratch.numel() < block.numel():
            scratch = scratch.new_empty(block.numel())
        # A product that is added to 1.5·2^52 units is rounded to whole units, and the
        # bits of the result, read as an integer, count these units.
        power = _power(units[number, columns].long() + MANTISSA)
        anchor = power + (1 << (MANTISSA - 1))
        products = scratch[: block.numel()].view(block.shape).copy_(block)
        # In one pass: whole numbers below 2^29 times float32 numbers are exact in
        # float64, so it makes no difference whether the product is rounded before the
        # anchor is added.
        factors = of_rows[:, None]
        torch.addcmul(anchor.view(torch.float64), products, factors, out=products)
        counted = products.view(torch.int64).sum(dim=0)
        total[number, columns] += counted - len(block) * anchor
    return total


def means(
    sums: Tensor, units: Tensor, totals: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """The means ``[k, width]`` of type ``dtype``: the sums of all ranks, divided by
    ``totals`` [k].

    sums: in whole ``units``, int64 [k, width]. totals: the sums of all weights; where
    one is 0, so that no row counts, the mean is NaN.
    """
    result = torch.empty(sums.shape, dtype=dtype, device=sums.device)

    def divide(columns: slice) -> None:
        for number, total in enumerate(totals):
            unit = _power(units[number, columns].long()).view(torch.float64)
            result[number, columns] = (sums[number, columns] * unit).div_(total)

    blocks = mixing.blocks(sums.shape[1], 1, sums.device)
    for _ in mixing.on_all_cores(divide, blocks, sums.device):
        pass
    return result


def _power(exponents: Tensor) -> Tensor:
    """The bits of the float64 numbers 2^exponents, as int64."""
    return (exponents + BIAS) << MANTISSA


def _blocks(
    rows: Tensor, weights: Tensor
) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
    """Blocks of rows and columns of each of the k sums, of the rows that count: row
    after row as they lie.

    Yields the number of the sum, the columns, the block [m, columns] of m rows that
    count in it, and their weights [m], float64.
    """
    device = rows.device
    width = rows.shape[-1]
    for number, of_sum in enumerate(weights.T):
        summands = rows if rows.dim() == 2 else rows[:, number]
        counting = of_sum.nonzero()[:, 0]
        factors = of_sum[counting].to(device, torch.float64)
        positions = counting.to(device)
        for start in range(0, len(positions), BLOCK_ROWS):
            group = slice(start, start + BLOCK_ROWS)
            of_group = factors[group]
            # Where all rows count a block is a view, without a copy.
            chosen = group if len(positions) == len(summands) else positions[group]
            for columns in mixing.blocks(width, len(of_group), device, BLOCK_FLOATS):
                yield number, columns, summands[chosen, columns], of_group
