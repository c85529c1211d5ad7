"""Writing rows to distinct positions of a matrix."""

import torch
from torch import Tensor


def index_copy(whole: Tensor, index: slice | Tensor, rows: Tensor) -> None:
    """Set ``whole[index] = rows`` in place, along the first dimension.

    With equal indices a GPU would keep a random one of the rows. torch's deterministic
    kernels sort the indices first and need about thirty launches instead of one.

    index: a slice, or distinct indices [k].
    """
    if isinstance(index, slice):
        whole[index] = rows
    elif not whole.is_cuda:
        whole.index_copy_(0, index, rows)
    else:
        mode = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode(0)
        try:
            whole.index_copy_(0, index, rows)
        finally:
            torch.set_deterministic_debug_mode(mode)
