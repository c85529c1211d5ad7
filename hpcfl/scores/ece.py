"""Expected calibration error: the difference between a client's model's confidence and
its accuracy.

The score is ``Σ_b |right_b − confidence_b| / n`` over 15 bins of the largest softmax
probability, ``((b−1)/15, b/15]``. The sums run over the n test samples in each bin (Guo
et al., "On calibration of modern neural networks", ICML 2017, eq. 3).
"""

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score, histogram

BINS = 15


class CalibrationError(Score):
    better = "down"

    def sums(self, block: Block) -> Tensor:
        confidence = block.logits.double().softmax(dim=2).amax(dim=2)
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        counted = block.mask.double()
        right = histogram(bins, block.right.double(), BINS)
        confident = histogram(bins, confidence * counted, BINS)
        samples = histogram(bins, counted, BINS)
        return torch.cat([right, confident, samples], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        right, confidence, counted = sums.chunk(3, dim=1)
        return (right - confidence).abs().sum(dim=1) / counted.sum(dim=1)


plugin = CalibrationError
