"""The server's products ``A·W``: mixing matrices applied to stacked client models.

Sums run in client order in float64 and are rounded once, so equal models mix to exactly themselves and a single
client's average is exactly its model. Columns are taken in blocks: memory is bounded whatever the model's size.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_FLOATS = 1 << 18  # float64 scratch of about 2 MB a block, which stays in a core's cache


def mix(matrix: Tensor, rows: Tensor) -> Tensor:
    """``matrix @ rows``: ``[m, n] · [n, width] → [m, width]`` float32, accumulated in float64."""
    matrix = matrix.to(torch.float64)
    mixed = rows.new_empty(matrix.shape[0], rows.shape[1])
    for columns in _blocks(rows.shape[1], sum(matrix.shape)):
        mixed[:, columns] = matrix @ rows[:, columns].to(torch.float64)
    return mixed


def average(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted mean row ``[width]`` of ``rows`` ``[n, width]``; weights ``[n]`` sum to one."""
    return mix(weights[None], rows)[0]


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[m, n]`` from ``rows`` [m, width] to ``others`` [n, width], float64, from differences.

    The Gram expansion ‖a‖² + ‖b‖² − 2ab loses every digit for nearly equal models (methods-1.md §2).
    """
    if torch.equal(rows, others):  # all pairs once, and six times as fast
        return _among(rows)
    squares = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    for columns in _blocks(rows.shape[1], len(rows) + len(others)):
        left, right = rows[:, columns].to(torch.float64), others[:, columns].to(torch.float64)
        squares += torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squares.sqrt()


def _among(rows: Tensor) -> Tensor:
    """Euclidean distances [n, n] of rows from each other."""
    count = len(rows)
    squares = torch.zeros(count * (count - 1) // 2, dtype=torch.float64, device=rows.device)
    for columns in _blocks(rows.shape[1], count):
        squares += torch.pdist(rows[:, columns].to(torch.float64)).square()
    found = squares.new_zeros(count, count)
    first, second = torch.triu_indices(count, count, offset=1, device=rows.device)
    found[first, second] = found[second, first] = squares.sqrt()
    return found


def _blocks(width: int, rows: int) -> Iterator[slice]:
    """Cuts of the columns such that float64 blocks of so many rows fit the scratch."""
    step = max(1, BLOCK_FLOATS // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, start + step)
