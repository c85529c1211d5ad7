"""Mixing of updates before a rule, which reduces the variance of honest rows.

Nearest-neighbour mixing: Allouah et al., "Fixing by mixing", AISTATS 2023. Bucketing:
Karimireddy, He & Jaggi, "Byzantine-robust learning on heterogeneous datasets via
bucketing", ICLR 2022.
"""

import numpy as np
import torch
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.updates.columns import compute_squares


def mix_nearest(rows: Tensor, tolerated: int) -> Tensor:
    """Return the mean of the n − f nearest rows of each row, including itself, float64
    [n, P].

    Args:
        rows: The updates [n, P].
        tolerated: The number f of bad clients.
    """
    squares = compute_squares(rows)
    squares.fill_diagonal_(-1)  # sorts each row first among its neighbours
    order = squares.argsort(dim=1, stable=True)
    count = len(rows) - tolerated
    nearest = order[:, :count]
    return _average(rows, list(nearest))


def mix_buckets(rows: Tensor, order: np.ndarray, size: int) -> Tensor:
    """Return the means of groups of rows, float64 [⌈n/size⌉, P].

    Args:
        rows: The updates [n, P].
        order: The rows' positions [n], shuffled.
        size: The number of rows in a group; the last group may be smaller.
    """
    positions = torch.from_numpy(order)
    groups = positions.split(size)
    return _average(rows, list(groups))


def _average(rows: Tensor, groups: list[Tensor]) -> Tensor:
    """Return the mean of each group of positions, float64 [groups, P]."""
    matrix = torch.zeros(len(groups), len(rows), dtype=torch.float64)
    for weights, group in zip(matrix, groups, strict=True):
        weights[group] = 1 / len(group)
    return mixing.mix(matrix, rows, torch.float64)
