"""Random-k: k entries of an update at random positions, the same for all clients of a
round.
"""

from typing import Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.compression import WORD, Sparse

SEED = 64  # bits of the seed from which the positions are drawn


def draw_positions(width: int, k: int, random: np.random.Generator) -> Tensor:
    """Draw k different positions below ``width``, ascending, int64 [k]."""
    drawn = random.choice(width, k, replace=False, shuffle=False)
    return torch.from_numpy(drawn).sort().values


def keep_positions(updates: Tensor, positions: Tensor, factor: float) -> Tensor:
    """Return rows [n, P] with the entries at ``positions`` [k] times ``factor``, and 0
    elsewhere.
    """
    positions = positions.to(updates.device)
    kept = torch.zeros_like(updates)
    kept[:, positions] = updates[:, positions] * factor
    return kept


class RandomK(Sparse):
    """Random-k sparsification. Clients send a seed instead of the positions."""

    scaled: bool = Field(
        True,
        description="multiply the sent entries by P/k to make the result unbiased; must be "
        "false with error feedback",
    )

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        if self.scaled and self.remembers:
            raise ValueError(
                "feedback needs scaled = false, because random-k with the factor P/k is "
                "no contraction"
            )
        return self

    @property
    def remembers(self) -> bool | str:
        return not self.scaled if self.feedback is None else self.feedback

    def compress(self, updates: Tensor, context: Context) -> Tensor:
        width = updates.shape[1]
        factor = width / self.count_entries(width) if self.scaled else 1.0
        return self._keep(updates, context, factor)

    def apply_to_forged(self, updates: Tensor, context: Context) -> Tensor:
        """Return the entries that attackers send, which are scaled already."""
        return self._keep(updates, context, 1.0)

    def _keep(self, updates: Tensor, context: Context, factor: float) -> Tensor:
        """Return the round's entries of the updates times ``factor``, 0 elsewhere."""
        width = updates.shape[1]
        k = self.count_entries(width)
        positions = draw_positions(width, k, context.random("random-k"))
        return keep_positions(updates, positions, factor)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        k = self.count_entries(updates.shape[1])
        return torch.full_like(bits, WORD * k + SEED)


plugin = RandomK
