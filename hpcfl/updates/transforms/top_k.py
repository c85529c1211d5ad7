"""The k largest absolute values of an update; the other entries become 0."""

import torch
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.compression import WORD, Sparse


def keep_largest(updates: Tensor, k: int) -> Tensor:
    """Return rows [n, P] with the k largest absolute values of each row, and 0 elsewhere.

    Of equal absolute values the earlier ones are kept.
    """
    sizes = updates.abs()
    least = sizes.topk(k, dim=1).values[:, -1:]
    above = sizes > least
    equal = sizes == least
    room = k - above.sum(dim=1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=1) <= room))
    return torch.where(kept, updates, 0)


class TopK(Sparse):
    """Each value is sent with its position."""

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        k = self.count_entries(updates.shape[1])
        # one row at a time, as each needs several times its memory
        return torch.cat([keep_largest(row[None], k) for row in updates])

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        width = updates.shape[1]
        position = (width - 1).bit_length()
        entries = self.count_entries(width) * (WORD + position)
        return torch.full_like(bits, min(entries, WORD * width))


plugin = TopK
