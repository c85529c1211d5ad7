"""Sign compression: the signs of an update times its mean absolute value (Karimireddy,
Rebjock, Stich, Jaggi, ICML 2019).
"""

import torch
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.updates.base import Context
from hpcfl.updates.compression import WORD, Compression


class Sign(Compression):
    """Compression of each row v to (‖v‖₁/P)·sign(v), with sign(0) = +1. A sign has 1
    bit, and the mean absolute value 32 bits.
    """

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        sizes = updates.double().abs()
        means = mixing.sum_rows(sizes) / updates.shape[1]
        factors = means.to(updates.dtype)[:, None]
        return torch.where(updates < 0, -factors, factors)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        return torch.full_like(bits, updates.shape[1] + WORD)


plugin = Sign
