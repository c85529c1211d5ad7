"""Loss: the mean cross-entropy of a client's test samples, in nats.

``clients/COLUMN/loss`` is the sum over a client's samples and ``clients/COLUMN/total``
their number. ``COLUMN/loss`` is the mean over clients of their mean losses.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor

from hpcfl.scores.base import Block, Ratio


class Loss(Ratio):
    unit = "nats"
    better = "down"
    part = "loss"

    def sums(self, block: Block) -> Tensor:
        logits, labels = block.logits.flatten(0, 1), block.labels.flatten()
        losses = functional.cross_entropy(logits, labels, reduction="none")
        summed = (
            torch.where(block.mask, losses.view_as(block.mask), 0).double().sum(dim=1)
        )
        return torch.stack([summed, block.samples], dim=1)


plugin = Loss
