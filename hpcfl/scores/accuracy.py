"""Accuracy: the share of a client's test samples that are predicted correctly
(protocols.md E2).

The run records ``correct`` and ``total`` for each client. For the round it records
``COLUMN/weighted``, Σ correct / Σ total over clients. ``COLUMN/mean``, ``COLUMN/std``
and ``COLUMN/worst_tenth`` are recorded without the score's name.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hpcfl.scores.base import KINDS, Block, Numbers, Ratio


class Accuracy(Ratio):
    part = "correct"
    summaries = ("weighted", *KINDS)

    def sums(self, block: Block) -> Tensor:
        return torch.stack([block.right.double().sum(dim=1), block.samples], dim=1)

    def summary(self, name: str, numbers: Mapping[str, Numbers]) -> dict[str, float]:
        correct, total = numbers["correct"], numbers["total"]
        scored = total > 0  # False for NaN
        weighted = (
            float(correct[scored].sum() / total[scored].sum())
            if scored.any()
            else float("nan")
        )
        return {"weighted": weighted, **super().summary(name, numbers)}

    def recorded_as(self, name: str, kind: str) -> str:
        return kind


plugin = Accuracy
