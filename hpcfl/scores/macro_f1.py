"""Macro F1: the mean F1 (of precision and recall) over the classes that a client has in
its test set.

The score is ``1/|C| · Σ_{c ∈ C} 2·correct_c / (predicted_c + tested_c)``, with C the
classes with test samples. It is the mean of the classes' F1, not the F1 of mean
precision and recall. Opitz & Burst, "Macro F1 and macro F1", arXiv 1911.03347, compare
both. A class of C that is never predicted counts with 0.

scikit-learn's ``f1_score(average="macro")`` is the same number with ``labels`` set to
C. Without ``labels``, its mean includes predicted classes without test samples as 0,
which counts such mistakes twice.
"""

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score


class MacroF1(Score):
    def sums(self, block: Block) -> Tensor:
        return torch.cat(
            [block.right_by_class, block.predicted_by_class, block.tested_by_class],
            dim=1,
        )

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, predicted, tested = sums.chunk(3, dim=1)
        f1 = 2 * correct / (predicted + tested)
        return torch.where(tested > 0, f1, torch.nan).nanmean(dim=1)


plugin = MacroF1
