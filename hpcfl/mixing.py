"""The server's products ``A·W``: mixing matrices applied to stacked client models.

Sums run in client order in float64 and are rounded once, so equal models mix to exactly themselves and a single
client's average is exactly its model. Columns are taken in blocks: memory is bounded whatever the model's size.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

BLOCK_FLOATS = 1 << 17  # float64 scratch of 1 MB a block, which stays in a core's cache


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


def replaced(rows: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """``rows`` [M, width] with those at ascending ``positions`` [n] replaced; ``rows`` stays as it is. All of them: ``new``."""
    return new if len(positions) == len(rows) else rows.index_copy(0, positions, new)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[m, n]`` from ``rows`` [m, width] to ``others`` [n, width], float64, from differences.

    The Gram expansion ‖a‖² + ‖b‖² − 2ab loses every digit for nearly equal models (methods-1.md §2).
    """
    blocks = _blocks(rows.shape[1], len(rows) + len(others))
    return _root(_differences(rows[:, columns], others[:, columns]) for columns in blocks)


def distances_within(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``distances(rows[first], rows[second])`` of positions [m] and [n], without copies of whole rows."""
    if torch.equal(first, second):  # all pairs once, and six times as fast
        return _among(rows, first)
    blocks = _blocks(rows.shape[1], len(first) + len(second))
    return _root(_differences(rows[first, columns], rows[second, columns]) for columns in blocks)


def _differences(left: Tensor, right: Tensor) -> Tensor:
    """Distances [m, n], float64, never by a matrix product."""
    return torch.cdist(left.double(), right.double(), compute_mode="donot_use_mm_for_euclid_dist")


def _root(parts: Iterator[Tensor]) -> Tensor:
    """Distances from those of blocks of columns."""
    return cast(Tensor, sum(part.square() for part in parts)).sqrt()


def _among(rows: Tensor, chosen: Tensor) -> Tensor:
    """Euclidean distances [n, n] of the chosen rows from each other."""
    count = len(chosen)
    pairs = _root(torch.pdist(rows[chosen, columns].double()) for columns in _blocks(rows.shape[1], count))
    found = pairs.new_zeros(count, count)
    first, second = torch.triu_indices(count, count, offset=1, device=rows.device)
    found[first, second] = found[second, first] = pairs
    return found


def _blocks(width: int, rows: int) -> Iterator[slice]:
    """Cuts of the columns such that float64 blocks of so many rows fit the scratch."""
    step = max(1, BLOCK_FLOATS // max(1, rows))
    for start in range(0, width, step):
        yield slice(start, start + step)
