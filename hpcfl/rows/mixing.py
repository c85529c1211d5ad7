"""The server's products ``A·W``: mixing matrices applied to stacked client models.

Sums run in client order in float64 and are rounded once, so equal models mix to exactly themselves and
a single client's average is exactly its model. Columns are taken in blocks, which go to the server's device:
its memory is bounded whatever the number of clients and the model's size. Matrices on the CPU are
made in ``scratch``.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from hpcfl.files import scratch
from hpcfl.rows import pinned

BLOCK_FLOATS = 1 << 17  # float64 scratch of 1 MB a block, which stays in a core's cache
GPU_BLOCK_FLOATS = 1 << 25  # 256 MB, which keep a GPU busy
_device = torch.device("cpu")


def on(device: torch.device) -> None:
    """From now on blocks of matrices that lie on the CPU are worked on there."""
    global _device
    _device = device


def mix(matrix: Tensor, rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """``matrix @ rows[chosen]``: ``[m, n] · [n, width] → [m, width]`` float32, accumulated in float64;
    without ``chosen`` [n] of all rows."""
    device = _where(rows)
    # Doubled where they are worked on: half as much travels, and the host converts nothing.
    matrix, mixed = matrix.to(device).double(), _empty(rows, matrix.shape[0])
    for columns in _blocks(rows.shape[1], sum(matrix.shape), device):
        block = rows[:, columns] if chosen is None else rows[chosen, columns]
        product = (matrix @ pinned.on_device(block, device).double()).to(rows.dtype)
        mixed[:, columns] = product if mixed.is_cuda else pinned.on_host(product)
    return mixed


def average(weights: Tensor, rows: Tensor, chosen: Tensor | None = None) -> Tensor:
    """The weighted mean row ``[width]`` of ``rows[chosen]`` ``[n, width]``; weights ``[n]`` sum to one."""
    return mix(weights[None], rows, chosen)[0]


def picked(rows: Tensor, positions: Tensor) -> Tensor:
    """``rows[positions]``, a copy."""
    return torch.index_select(rows, 0, positions, out=_empty(rows, len(positions)))


def columns(rows: Tensor, part: slice) -> Tensor:
    """Some columns of every row; a copy unless they are all."""
    chosen = rows[:, part]
    return rows if chosen.shape == rows.shape else _empty(chosen, len(rows)).copy_(chosen)


def replaced(rows: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """``rows`` [M, width] with those at ascending ``positions`` [n] replaced; ``rows`` stays as it is.
    All of them: ``new``."""
    return (new if len(positions) == len(rows)
            else _empty(rows, len(rows)).copy_(rows).index_copy_(0, positions, new))


def repeated(row: Tensor, count: int) -> Tensor:
    """The same row [width] for every client, ``[count, width]``."""
    return _empty(row[None], count).copy_(row)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[m, n]`` from ``rows`` [m, width] to ``others`` [n, width], float64,
    from differences.

    The Gram expansion ‖a‖² + ‖b‖² − 2ab loses every digit for nearly equal models (methods-1.md §2).
    """
    return total(lambda left, right: _differences(left, right).square(), rows, others).sqrt()


def distances_within(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``distances(rows[first], rows[second])`` of positions [m] and [n], without copies of whole rows."""
    if not torch.equal(first, second):
        return total(lambda block: _differences(block[first], block[second]).square(), rows).sqrt()
    # each once, and faster
    pairs = total(lambda block: torch.pdist(block[first].double()).square(), rows).sqrt()
    found = pairs.new_zeros(len(first), len(first))
    upper = torch.triu_indices(len(first), len(first), offset=1, device=rows.device)
    found[upper[0], upper[1]] = found[upper[1], upper[0]] = pairs
    return found


def total(part: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """The sum of ``part(*blocks)`` over blocks of columns of matrices ``[n, width]`` and rows ``[width]``."""
    device = _where(matrices[0])
    blocks = _blocks(matrices[0].shape[-1], sum(len(matrix) for matrix in matrices if matrix.dim() > 1),
                     device)
    parts = (part(*(pinned.on_device(matrix[..., columns], device) for matrix in matrices))
             for columns in blocks)
    return cast(Tensor, sum(parts)).to(matrices[0].device)


def _differences(left: Tensor, right: Tensor) -> Tensor:
    """Distances [m, n], float64, never by a matrix product."""
    return torch.cdist(left.double(), right.double(), compute_mode="donot_use_mm_for_euclid_dist")


def _where(rows: Tensor) -> torch.device:
    """Where blocks of these rows are worked on."""
    return _device if rows.device.type == "cpu" else rows.device


def _empty(like: Tensor, count: int) -> Tensor:
    """Rows of the width, type and device of others."""
    shape = [count, like.shape[1]]
    return scratch.empty(shape, like.dtype) if like.device.type == "cpu" else like.new_empty(shape)


def _blocks(width: int, rows: int, device: torch.device) -> Iterator[slice]:
    """Cuts of the columns such that float64 blocks of so many rows fit the device's scratch."""
    step = max(1, (BLOCK_FLOATS if device.type == "cpu" else GPU_BLOCK_FLOATS) // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, start + step)
