"""Top-k: the k entries of an update with the largest absolute values; all others become
0.
"""

import torch
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.compression import WORD, Sparse


def keep_largest(updates: Tensor, k: int) -> Tensor:
    """Return rows [n, P] with the k entries of largest absolute value of each row, and
    0 elsewhere. Among equal absolute values the earlier entries are kept.
    """
    sizes = updates.abs()
    largest = sizes.topk(k, dim=1).values
    least = largest[:, -1:]
    is_above = sizes > least
    is_equal = sizes == least
    room = k - is_above.sum(dim=1, keepdim=True)
    place = is_equal.cumsum(dim=1)  # position among the equal values, from 1
    has_room = place <= room
    is_kept = is_above | (is_equal & has_room)
    return torch.where(is_kept, updates, 0)


class TopK(Sparse):
    """Top-k sparsification. Clients send each entry with its position."""

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        k = self.count_entries(updates.shape[1])
        kept = []
        # One row at a time, because the computation needs several times its memory.
        for row in updates:
            kept.append(keep_largest(row[None], k))
        return torch.cat(kept)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        width = updates.shape[1]
        position = (width - 1).bit_length()
        sparse = self.count_entries(width) * (WORD + position)
        whole = WORD * width
        return torch.full_like(bits, min(sparse, whole))


plugin = TopK
