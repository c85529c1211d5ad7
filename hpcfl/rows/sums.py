"""Weighted sums Σ_i s_i·w_i of rows w_i with rank-independent bits.

The bits do not depend on the distribution of rows over ranks.

Each rank sums its own rows, and then the ranks' sums are added. A floating-point sum
would depend on the order, and so on the number of ranks. Here every product s_i·w_i is
first rounded to a whole number of units. Whole numbers in int64 have the same sum in
any order.

Each column has its own unit, a power of two. It is about 2^−51 of the largest possible
product in the column on any rank. Rounding therefore loses no more precision than a sum
in float64.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpcfl.rows import mixing

# Number of bits of a product in units. float64 has 53, of which rounding by an anchor
# uses two.
PRODUCT_BITS = 51
# Number of bits of a sum in units. int64 has 63 besides the sign, of which rounding may
# use one.
SUM_BITS = 62
# Number of bits of the fraction of float64, and bias of its exponent.
MANTISSA = 52
BIAS = 1023
# Number of float64 elements in a block, 4 MB, and maximum number of its rows. Long
# pieces of rows matter more than a core's cache. More rows would make the pieces short,
# which is slow, most of all for files.
BLOCK_FLOATS = 1 << 19
BLOCK_ROWS = 64
# Exponent of a column of zeros. Numbers below 2^LOWEST may be rounded to zero.
LOWEST = -900


def compute_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean ``[width]``, with the bits of rows on several ranks.

    Args:
        rows: rows [n, width].
        weights: whole numbers [n].
    """
    total = weights.sum().item()
    table = weights[:, None]  # one sum, k = 1
    exponents = find_magnitudes(rows, table)
    unit = choose_units(exponents, weights.max().item(), total)
    summed = sum_in_units(rows, table, unit)
    found = divide_sums(summed, unit, [total], rows.dtype)
    return found[0]


def find_magnitudes(rows: Tensor, weights: Tensor) -> Tensor:
    """Return for each column the smallest e with |w| < 2^e, int16 ``[k, width]``.

    Args:
        rows: ``[n, width]``, the same for all k sums, or ``[n, k, width]``, different
            rows for each sum.
        weights: whole numbers [n, k]. A row with weight 0 is ignored and may contain
            NaN.
    """
    largest = rows.new_zeros(weights.shape[1], rows.shape[-1])
    for number, columns, block, _ in _cut_blocks(rows, weights):
        so_far = largest[number, columns]
        torch.maximum(so_far, block.abs().amax(dim=0), out=so_far)
    exponents = torch.empty(largest.shape, dtype=torch.int16, device=rows.device)
    for columns in mixing.cut_blocks(largest.shape[1], len(largest), rows.device):
        # float64 holds all types exactly. Reading the exponent from its bits is much
        # faster than ``frexp``.
        bits = largest[:, columns].double().view(torch.int64)
        of_block = (bits >> MANTISSA) - (BIAS - 1)
        exponents[:, columns] = of_block.clamp_(min=LOWEST)
    return exponents


def choose_units(magnitudes: Tensor, largest: float, total: float) -> Tensor:
    """Return the exponents of the columns' units, int16 ``[k, width]``.

    Args:
        magnitudes: largest magnitudes on any rank, ``[k, width]``.
        largest: largest weight on any rank.
        total: largest of the k sums of weights over all ranks.
    """
    for_products = int(largest).bit_length() - PRODUCT_BITS
    for_sums = int(total).bit_length() - SUM_BITS
    return magnitudes + max(for_products, for_sums)


def sum_in_units(rows: Tensor, weights: Tensor, units: Tensor) -> Tensor:
    """Return the weighted sums of the rows in whole units, int64 ``[k, width]``.

    Args:
        rows, weights: as for ``find_magnitudes``.
        units: exponents from ``choose_units``.
    """
    units = mixing.move_to_device(units, rows.device)
    total = torch.zeros(units.shape, dtype=torch.int64, device=rows.device)
    # All blocks share this memory, because allocations take longer than the sums.
    scratch = torch.empty(0, dtype=torch.float64, device=rows.device)
    for number, columns, block, of_rows in _cut_blocks(rows, weights):
        if scratch.numel() < block.numel():
            scratch = scratch.new_empty(block.numel())
        # Adding 1.5·2^52 units to a product rounds it to whole units. The bits of the
        # result as an integer, minus those of 1.5·2^52 units, are the number of units.
        power = _encode_power(units[number, columns].long() + MANTISSA)
        anchor = power + (1 << (MANTISSA - 1))
        products = scratch[: block.numel()].view(block.shape).copy_(block)
        # addcmul is exact: the product of a whole number below 2^29 and a float32 number
        # fits into float64, so an intermediate rounding does not change it.
        factors = of_rows[:, None]
        torch.addcmul(anchor.view(torch.float64), products, factors, out=products)
        counted = products.view(torch.int64).sum(dim=0)
        total[number, columns] += counted - len(block) * anchor
    return total


def divide_sums(
    sums: Tensor, units: Tensor, totals: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """Return the means ``[k, width]`` of type ``dtype``: sums divided by ``totals``.

    Args:
        sums: sums over all ranks in whole units, int64 [k, width].
        units: exponents of the units, [k, width].
        totals: sums of all weights, [k]. With a total of 0 the mean is NaN.
        dtype: type of the means.
    """
    result = torch.empty(sums.shape, dtype=dtype, device=sums.device)

    def divide(columns: slice) -> None:
        for number, total in enumerate(totals):
            unit = _encode_power(units[number, columns].long()).view(torch.float64)
            result[number, columns] = (sums[number, columns] * unit).div_(total)

    blocks = mixing.cut_blocks(sums.shape[1], 1, sums.device)
    for _ in mixing.compute_on_all_cores(divide, blocks, sums.device):
        pass
    return result


def _encode_power(exponents: Tensor) -> Tensor:
    """Return the bits of the float64 numbers 2^exponents, as int64."""
    return (exponents + BIAS) << MANTISSA


def _cut_blocks(
    rows: Tensor, weights: Tensor
) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
    """Yield blocks of rows with nonzero weight for each of the k sums, in row order.

    Yields:
        The number of the sum, the columns, the block [m, columns] of m rows, and their
        weights [m], float64.
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
            # A slice of consecutive rows gives a view, without a copy.
            chosen = group if len(positions) == len(summands) else positions[group]
            for columns in mixing.cut_blocks(
                width, len(of_group), device, BLOCK_FLOATS
            ):
                yield number, columns, summands[chosen, columns], of_group
