"""QSGD: stochastic quantisation of each entry to one of 2s + 1 multiples of the
update's norm (Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017).
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.updates.base import Context
from hpcfl.updates.compression import WORD, Compression
from hpcfl.updates.rounding import round_randomly


def quantise(updates: Tensor, levels: int, uniforms: Tensor) -> Tensor:
    """Return rows [n, P] rounded stochastically to integer multiples of ‖v‖₂/levels.

    The expected result is the row. A row of zeros stays zero.

    Args:
        updates: The rows v, [n, P].
        levels: The number of levels above 0.
        uniforms: Random numbers in [0, 1), float64 [n, P].
    """
    exact = updates.double()
    squares = mixing.sum_rows(exact.square())
    norms = squares.sqrt()[:, None]
    divisors = torch.where(norms > 0, norms, 1)
    positions = levels * exact.abs() / divisors
    capped = positions.clamp(max=levels)
    chosen = round_randomly(capped, uniforms)
    sent = exact.sign() * norms * chosen / levels
    return sent.to(updates.dtype)


def count_quantised_bits(width: int, levels: int) -> int:
    """Return the bits of a quantised row of ``width`` numbers: a code of fixed length
    for each number, and the norm.
    """
    of_number = (2 * levels).bit_length()
    return width * of_number + WORD


class Qsgd(Compression):
    """QSGD with a code of fixed length. The paper's code needs fewer bits on average."""

    is_biased = False

    levels: PositiveInt = Field(
        7, description="number s of levels above 0; 7 levels need 4 bits per number"
    )

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        sent = []
        for row, client in zip(updates, context.ids.tolist(), strict=True):
            random = context.random_of("qsgd", client)
            drawn = random.random((1, len(row)))
            uniforms = torch.from_numpy(drawn).to(row.device)
            quantised = quantise(row[None], self.levels, uniforms)
            sent.append(quantised)
        return torch.cat(sent)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        of_row = count_quantised_bits(updates.shape[1], self.levels)
        return torch.full_like(bits, of_row)


plugin = Qsgd
