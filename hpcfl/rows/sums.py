"""Weighted sums Σ_i s_i·w_i that do not depend on who adds: each rank adds up its own rows, and the ranks'
sums are added.

A sum of floating-point numbers would depend on the order, and so on the number of ranks. Here every product
s_i·w_i is first rounded to a whole number of units, and whole numbers in int64 add up to the same in any
order. A unit is a power of two, of each column its own: about 2^−51 of the largest product that there may be
in the column on any rank, so rounding takes no more than what a sum in float64 loses.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpcfl.rows import mixing

PRODUCT_BITS = 51  # float64 has 53; the anchor that rounds a product takes two
SUM_BITS = 62  # int64 has 63 beside the sign; one for what rounding may add
MANTISSA, BIAS = 52, 1023  # of float64: the bits of its fraction, and what is added to its exponent
BLOCK_FLOATS = 1 << 19  # float64 of a block, 4 MB: long pieces of rows count more than a core's cache
LOWEST = -900  # exponent of a column of zeros; entries of float64 below 2^LOWEST count as zeros


def mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean row ``[width]`` of rows ``[n, width]`` that are all here, the bits as over ranks.

    weights: whole numbers ``[n]``.
    """
    table, total = weights[:, None], weights.sum().item()
    unit = units(magnitudes(rows, table), weights.max().item(), total)
    return means(sums(rows, table, unit), unit, [total], rows.dtype)[0]


def magnitudes(rows: Tensor, weights: Tensor) -> Tensor:
    """For each column the smallest e with |w| < 2^e for all rows that count, int16 ``[k, width]``.

    rows: ``[n, width]``, the same for all k sums, or ``[n, k, width]``. weights: whole numbers ``[n, k]``;
    rows with 0 do not count.
    """
    found = rows.new_zeros(weights.shape[1], rows.shape[-1])
    for number, columns, block, _ in _blocks(rows, weights):
        torch.amax(block.abs(), dim=0, out=found[number, columns])
    exponents = torch.frexp(found).exponent.clamp(min=LOWEST)
    return torch.where(found > 0, exponents, LOWEST).to(torch.int16)


def units(magnitudes: Tensor, largest: float, total: float) -> Tensor:
    """Exponents of the columns' units, int16 ``[k, width]``, from the highest magnitudes on any rank.

    largest: the largest weight on any rank. total: the largest sum of weights of all ranks.
    """
    return magnitudes + max(int(largest).bit_length() - PRODUCT_BITS, int(total).bit_length() - SUM_BITS)


def sums(rows: Tensor, weights: Tensor, units: Tensor) -> Tensor:
    """The weighted sums of the rows in whole units, int64 ``[k, width]``; arguments as of ``magnitudes``."""
    units = units.to(rows.device)
    found = torch.zeros(units.shape, dtype=torch.int64, device=rows.device)
    scratch = torch.empty(0, dtype=torch.float64, device=rows.device)
    for number, columns, block, own in _blocks(rows, weights):
        if scratch.numel() < block.numel():  # one for all blocks: new memory would cost more than the sums
            scratch = scratch.new_empty(block.numel())
        # added to 1.5·2^52 units a product is rounded to whole units, which the bits of the sum then count
        anchor = _power(units[number, columns].long() + MANTISSA) + (1 << (MANTISSA - 1))
        products = scratch[:block.numel()].view(block.shape).copy_(block)
        products.mul_(own[:, None]).add_(anchor.view(torch.float64))
        found[number, columns] = products.view(torch.int64).sum(dim=0) - len(block) * anchor
    return found


def means(sums: Tensor, units: Tensor, totals: Sequence[float], dtype: torch.dtype) -> Tensor:
    """What ``sums`` of all ranks come to, divided by the sums of weights [k]: ``[k, width]``; not a number
    where nobody counts."""
    found = torch.empty(sums.shape, dtype=dtype, device=sums.device)
    for columns in mixing.blocks(sums.shape[1], 1, sums.device):
        for number, total in enumerate(totals):
            unit = _power(units[number, columns].long()).view(torch.float64)
            found[number, columns] = (sums[number, columns] * unit).div_(total)
    return found


def _power(exponents: Tensor) -> Tensor:
    """The bits of 2 to these powers in float64, int64."""
    return (exponents + BIAS) << MANTISSA


def _blocks(rows: Tensor, weights: Tensor) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
    """For each of the k sums, in blocks of columns: its number, the columns, the rows that count
    [m, columns] and their weights [m]."""
    for number, own in enumerate(weights.T):
        part = rows if rows.dim() == 2 else rows[:, number]
        positions = own.nonzero()[:, 0]
        chosen, own = positions.to(rows.device), own[positions].to(rows.device, torch.float64)
        if not len(chosen):
            continue
        for columns in mixing.blocks(rows.shape[-1], len(chosen), rows.device, BLOCK_FLOATS):
            yield number, columns, (part[:, columns] if len(chosen) == len(part) else
                                    part[chosen, columns]), own
