"""Expected calibration error: how far a client's model's confidence is from how often
it is right.

``Σ_b |right_b − confidence_b| / n`` over 15 bins of the largest softmax probability,
``((b−1)/15, b/15]``, with the sums over the n test samples in each (Guo et al., "On
calibration of modern neural networks", ICML 2017, eq. 3).
"""

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score

BINS = 15


class CalibrationError(Score):
    better = "down"

    def sums(self, block: Block) -> Tensor:
        confidence = block.logits.double().softmax(dim=2).amax(dim=2)
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        counted = block.mask.double()
        parts = []
        for values in (block.right.double(), confidence * counted, counted):
            zeros = torch.zeros(
                len(bins), BINS, dtype=torch.float64, device=bins.device
            )
            parts.append(zeros.scatter_add_(1, bins, values))
        return torch.cat(parts, dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        right, confidence, counted = sums.chunk(3, dim=1)
        return (right - confidence).abs().sum(dim=1) / counted.sum(dim=1)


plugin = CalibrationError
