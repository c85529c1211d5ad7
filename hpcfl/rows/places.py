"""Rows that are written to places of a matrix, no two to the same."""

import torch
from torch import Tensor


def index_copy(whole: Tensor, index: slice | Tensor, rows: Tensor) -> None:
    """``whole[index] = rows``, in place, along the first dimension.

    index: a slice, or indices [k] of which no two are the same. Which of several rows
    for one place comes last would be a matter of chance on a GPU; torch's kernels
    without chance sort the indices first, and take some thirty launches where this
    takes one.
    """
    if isinstance(index, slice):
        whole[index] = rows
        return
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    try:
        whole.index_copy_(0, index, rows)
    finally:
        torch.set_deterministic_debug_mode(mode)
