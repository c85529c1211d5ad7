"""Scores that are a sum over samples, divided by their number."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.scores.base import Numbers, Score


class Ratio(Score):
    """Recorded as its two sums, ``clients/COLUMN/PART`` and ``clients/COLUMN/total``, the test samples.

    ``sums`` are [L, 2]. part: the name of the first.
    """

    part: ClassVar[str]

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        return torch.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], torch.nan)

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        return {self.part: sums[:, 0], "total": sums[:, 1]}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        part, total = numbers[self.part], numbers["total"]
        return np.divide(part, total, out=np.full_like(total, np.nan), where=total > 0)
