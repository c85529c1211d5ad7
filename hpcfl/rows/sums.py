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

# of a product in units; float64 has 53, of which rounding by an anchor takes two
PRODUCT_BITS = 51
# of a sum in units; int64 has 63 beside the sign, of which one is for what rounding
# adds
SUM_BITS = 62
MANTISSA, BIAS = (
    52,
    1023,
)  # of float64: the bits of its fraction, and what is added to its exponent
BLOCK_FLOATS = (
    1 << 19
)  # of float64 in a block: 4 MB, as long pieces of rows matter more than a core's cache
# and so many rows at most: of more the pieces would be short, which files suffer from
# most
BLOCK_ROWS = 64
LOWEST = (
    -900
)  # the exponent of a column of zeros; numbers below 2^LOWEST may be rounded to zero


def mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean ``[width]`` of ``rows`` [n, width], with the same bits as if
    ranks shared the rows.

    weights: whole numbers [n].
    """
    table, total = weights[:, None], weights.sum().item()
    unit = units(magnitudes(rows, table), weights.max().item(), total)
    return means(sums(rows, table, unit), unit, [total], rows.dtype)[0]


def magnitudes(rows: Tensor, weights: Tensor) -> Tensor:
    """For each column the smallest e with |w| < 2^e for all rows that count, int16
    ``[k, width]``.

    rows: ``[n, width]``, the same for all k sums, or ``[n, k, width]``, rows of its own
        for each.
    weights: whole numbers [n, k]; a row with weight 0 does not count, and may hold NaN.
    """
    found = rows.new_zeros(weights.shape[1], rows.shape[-1])
    for number, columns, block, _ in _blocks(rows, weights):
        here = found[number, columns]
        torch.maximum(here, block.abs().amax(dim=0), out=here)
    # float64 holds all of them, and its exponent is read off its bits, much faster than
    # ``frexp`` computes it
    exponents = (found.double().view(torch.int64) >> MANTISSA) - (BIAS - 1)
    return exponents.clamp_(min=LOWEST).to(torch.int16)


def units(magnitudes: Tensor, largest: float, total: float) -> Tensor:
    """The exponents of the columns' units, int16 ``[k, width]``.

    magnitudes: the highest of all ranks ``[k, width]``. largest: the largest weight on
        any rank.
    total: the largest of the k sums of weights over all ranks.
    """
    return magnitudes + max(
        int(largest).bit_length() - PRODUCT_BITS, int(total).bit_length() - SUM_BITS
    )


def sums(rows: Tensor, weights: Tensor, units: Tensor) -> Tensor:
    """The weighted sums of the rows in whole units, int64 ``[k, width]``.

    rows, weights: as for ``magnitudes``. units: the exponents that ``units`` gives.
    """
    units = pinned.on_device(units, rows.device)
    found = torch.zeros(units.shape, dtype=torch.int64, device=rows.device)
    scratch = torch.empty(0, dtype=torch.float64, device=rows.device)
    for number, columns, block, own in _blocks(rows, weights):
        if (
            scratch.numel() < block.numel()
        ):  # All blocks use it: new memory would cost more than the sums.
            scratch = scratch.new_empty(block.numel())
        # A product that is added to 1.5·2^52 units is rounded to whole units, and the
        # bits of the result, read as an integer, count these units.
        anchor = _power(units[number, columns].long() + MANTISSA) + (
            1 << (MANTISSA - 1)
        )
        products = scratch[: block.numel()].view(block.shape).copy_(block)
        # In one pass: whole numbers below 2^29 times float32 numbers are exact in
        # float64, so it makes no difference whether the product is rounded before the
        # anchor is added.
        torch.addcmul(anchor.view(torch.float64), products, own[:, None], out=products)
        found[number, columns] += (
            products.view(torch.int64).sum(dim=0) - len(block) * anchor
        )
    return found


def means(
    sums: Tensor, units: Tensor, totals: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """The means ``[k, width]`` of type ``dtype``: the sums of all ranks, divided by
    ``totals`` [k].

    sums: in whole ``units``, int64 [k, width]. totals: the sums of all weights; where
    one is 0, so that no row counts, the mean is NaN.
    """
    found = torch.empty(sums.shape, dtype=dtype, device=sums.device)

    def divide(columns: slice) -> None:
        for number, total in enumerate(totals):
            unit = _power(units[number, columns].long()).view(torch.float64)
            found[number, columns] = (sums[number, columns] * unit).div_(total)

    for _ in mixing.on_all_cores(
        divide, mixing.blocks(sums.shape[1], 1, sums.device), sums.device
    ):
        pass
    return found


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
    for number, own in enumerate(weights.T):
        part = rows if rows.dim() == 2 else rows[:, number]
        positions = own.nonzero()[:, 0]
        chosen, own = (
            positions.to(rows.device),
            own[positions].to(rows.device, torch.float64),
        )
        for start in range(0, len(chosen), BLOCK_ROWS):
            group = slice(start, start + BLOCK_ROWS)
            which = group if len(chosen) == len(part) else chosen[group]
            for columns in mixing.blocks(
                rows.shape[-1], len(own[group]), rows.device, BLOCK_FLOATS
            ):
                yield number, columns, part[which, columns], own[group]
