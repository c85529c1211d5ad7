"""Computations on the rows of a round's updates, in blocks of columns.

Rows are in memory or in files, in any floating-point type. A block has a fixed number
of columns and is converted to float64 on the rank's device. Sums over blocks are added
in the order of the columns. The bits therefore depend neither on the number of ranks
nor on the number of cores, and a computation needs memory for only a few blocks in
addition to the rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from hpcfl.files import heartbeat
from hpcfl.rows import mixing

COLUMNS = 4096  # of a block


def sum_blocks(part: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Return the sum of ``part(*blocks)`` over all blocks, on the CPU.

    Args:
        part: Function that takes one block of each matrix, with the same columns.
        matrices: Tensors ``[n, P]`` or ``[P]``.
    """
    zero = torch.zeros((), dtype=torch.float64)
    parts = _map_blocks(part, matrices)
    return sum(parts, zero)


def join_blocks(part: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Return the concatenated results ``[columns]`` of ``part(*blocks)``, a float64 row
    ``[P]`` on the CPU. The arguments are those of ``sum_blocks``.
    """
    width = matrices[0].shape[-1]
    row = torch.empty(width, dtype=torch.float64)
    start = 0
    for block in _map_blocks(part, matrices):
        stop = start + len(block)
        row[start:stop] = block
        start = stop
    return row


def _map_blocks(
    part: Callable[..., Tensor], matrices: tuple[Tensor, ...]
) -> Iterator[Tensor]:
    device = mixing.get_place().device

    def compute(columns: slice) -> Tensor:
        blocks = []
        for matrix in matrices:
            block = mixing.move_to_device(matrix[..., columns], device)
            blocks.append(block.double())
        return part(*blocks).cpu()

    cuts = _divide(matrices[0].shape[-1])
    yield from mixing.compute_on_all_cores(compute, cuts, device)


def _divide(width: int) -> Iterator[slice]:
    for start in range(0, width, COLUMNS):
        yield slice(start, start + COLUMNS)
        heartbeat.beat()  # reading rows from files may take long


def sort_columns(block: Tensor) -> Tensor:
    """Return the values of each column of a block ``[n, columns]`` in ascending order.

    On a CPU NumPy sorts them, about ten times as fast as torch.
    """
    if block.is_cuda:
        return block.sort(dim=0).values
    columns = block.T.contiguous()
    ordered = np.sort(columns.numpy(), axis=1)
    return torch.from_numpy(ordered).T


def find_median(block: Tensor) -> Tensor:
    """Return the median of each column of a block ``[n, columns]``; for even n the mean
    of the two middle values.
    """
    ordered = sort_columns(block)
    upper = len(block) // 2
    lower = (len(block) - 1) // 2
    return (ordered[lower] + ordered[upper]) / 2


def compute_mean(rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the mean of rows, float64 [P].

    Args:
        rows: The rows [n, P].
        chosen: The positions [m] of the rows to average; None for all.
    """

    def average(block: Tensor) -> Tensor:
        if chosen is None:
            return block.mean(dim=0)
        positions = chosen.to(block.device)
        return block[positions].mean(dim=0)

    return join_blocks(average, rows)


def compute_weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w_i Δ_i / Σ w_i, float64 [P], for weights ``[n]``."""

    def average(block: Tensor) -> Tensor:
        factors = weights.to(block.device, torch.float64)
        return factors @ block / factors.sum()

    return join_blocks(average, rows)


def compute_squares(rows: Tensor) -> Tensor:
    """Return the squared distances between all pairs of rows, float64 [n, n].

    They are computed from products, ‖a‖² + ‖b‖² − 2ab. The median of each column is
    subtracted first, so that the distances of close rows do not lose digits.
    """

    def multiply(block: Tensor) -> Tensor:
        shifted = block - find_median(block)
        return shifted @ shifted.T

    products = sum_blocks(multiply, rows)
    sizes = products.diagonal()
    squares = sizes[:, None] + sizes - 2 * products
    symmetric = (squares + squares.T) / 2
    distances = symmetric.clamp(min=0)
    return distances.fill_diagonal_(0)


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Return the rows [n, P] clipped to a norm of at most ``bound``, with the same type
    and device. The bits of a row do not depend on the other rows.
    """
    squares = rows.double().square()
    norms = mixing.sum_rows(squares).sqrt()
    factors = bound / norms.clamp(min=bound)
    clipped = rows * factors[:, None]
    return clipped.to(rows.dtype)


def compute_distances(rows: Tensor, centre: Tensor) -> Tensor:
    """Return the Euclidean distance of each row to ``centre`` [P], float64 [n]."""
    return sum_blocks(_sum_squared_distances, rows, centre).sqrt()


def _sum_squared_distances(block: Tensor, centre: Tensor) -> Tensor:
    """Return the squared distance of each row of a block to the ``centre``."""
    return (block - centre).square().sum(dim=1)
