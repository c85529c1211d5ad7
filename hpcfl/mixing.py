"""The server's products ``A·W``: mixing matrices applied to stacked client models.

Sums run in client order in float64 and are rounded once, so equal models mix to exactly themselves and a single
client's average is exactly its model. Columns are taken in blocks: memory is bounded whatever the model's size.
"""

import torch
from torch import Tensor

BLOCK_FLOATS = 1 << 22  # float64 scratch of about 32 MB a block


def mix(matrix: Tensor, rows: Tensor) -> Tensor:
    """``matrix @ rows``: ``[m, n] · [n, width] → [m, width]`` float32, accumulated in float64."""
    matrix = matrix.to(torch.float64)
    mixed = rows.new_empty(matrix.shape[0], rows.shape[1])
    block = max(1, BLOCK_FLOATS // max(1, sum(matrix.shape)))
    for start in range(0, rows.shape[1], block):
        columns = slice(start, start + block)
        mixed[:, columns] = matrix @ rows[:, columns].to(torch.float64)
    return mixed


def average(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted mean row ``[width]`` of ``rows`` ``[n, width]``; weights ``[n]`` sum to one."""
    return mix(weights[None], rows)[0]


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[m, n]`` from ``rows`` [m, width] to ``others`` [n, width], float64, from differences.

    The Gram expansion ‖a‖² + ‖b‖² − 2ab loses every digit for nearly equal models (methods-1.md §2).
    """
    squares = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    block = max(1, BLOCK_FLOATS // max(1, len(rows) + len(others)))
    for start in range(0, rows.shape[1], block):
        left, right = (part[:, start:start + block].to(torch.float64) for part in (rows, others))
        squares += torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()
    return squares.sqrt()
