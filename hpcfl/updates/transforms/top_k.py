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
    largest = sizes.topk(k, dim=1).values
    least = largest[:, -1:]
    is_above = sizes > least
    is_equal = sizes == least
    room = k - is_above.sum(dim=1, keepdim=True)
    place = is_equal.cumsum(dim=1)  # of an equal value, from 1
    has_room = place <= room
    is_kept = is_above | (is_equal & has_room)
    return torch.where(is_kept, updates, 0)


class TopK(Sparse):
    """Each value is sent with its position."""

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        k = self.count_entries(updates.shape[1])
        kept = []
        for row in updates:  # one at a time, as each needs several times its memory
            kept.append(keep_largest(row[None], k))
        return torch.cat(kept)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        width = updates.shape[1]
        position = (width - 1).bit_length()
        sparse = self.count_entries(width) * (WORD + position)
        whole = WORD * width
        return torch.full_like(bits, min(sparse, whole))


plugin = TopK
