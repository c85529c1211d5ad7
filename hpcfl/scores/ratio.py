"""Scores that are means over a client's test samples."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.scores.base import Numbers, Score


class Ratio(Score):
    """A sum over a client's test samples, divided by their number; NaN without any.

    A subclass's ``sums`` returns these two, [L, 2]. Both are recorded, as
    ``clients/COLUMN/PART`` and ``clients/COLUMN/total``.

    Attributes:
        part: The name PART of the first.
    """

    part: ClassVar[str]

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        return torch.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], torch.nan)

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        return {self.part: sums[:, 0], "total": sums[:, 1]}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        part, total = numbers[self.part], numbers["total"]
        return np.divide(part, total, out=np.full_like(total, np.nan), where=total > 0)
