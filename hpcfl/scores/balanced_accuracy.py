"""Balanced accuracy: the mean recall over the classes that a client has among its test
samples.

The score is ``1/|C| · Σ_{c ∈ C} correct_c / tested_c``, with C the classes with test
samples. See Brodersen et al., "The balanced accuracy and its posterior distribution",
ICPR 2010, here for any number of classes. scikit-learn has it as
``balanced_accuracy_score``.
"""

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score


class BalancedAccuracy(Score):
    def sums(self, block: Block) -> Tensor:
        return torch.cat([block.right_by_class, block.tested_by_class], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, tested = sums.chunk(2, dim=1)
        return (correct / tested).nanmean(dim=1)


plugin = BalancedAccuracy
