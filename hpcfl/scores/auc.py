"""Area under the ROC curve of a client's model, micro-averaged one class against the
rest.

A pair consists of a probability for a sample's own class and one for a wrong class,
over all test samples of a client. The score is the share of pairs in which the former
is larger; equal ones count half.

It is scikit-learn's ``roc_auc_score(average="micro")`` of one-hot labels, as PFLlib
reports it, up to rounding. Sums over samples have no room for sorted probabilities. So
the log-odds are counted in steps of 1/64 between −16 and 16, and pairs within a step
count half.
"""

import torch
from torch import Tensor

from hpcfl.scores.base import Block, Score, histogram

LARGEST = 16  # log-odds
STEPS = 64  # for each of them
BINS = 2 * LARGEST * STEPS


class AreaUnderCurve(Score):
    def sums(self, block: Block) -> Tensor:
        """Count the probabilities of right and of wrong classes in each step."""
        log_p = block.logits.double().log_softmax(dim=2)
        log_p = log_p[:, :, : block.classes]
        log_odds = log_p - torch.log(-torch.expm1(log_p))
        steps = (log_odds + LARGEST) * STEPS
        steps = steps.nan_to_num(0).clamp(0, BINS - 1)
        bins = steps.long().flatten(1)
        classes = torch.arange(block.classes, device=bins.device)
        own_class = block.labels[:, :, None] == classes
        counted = block.mask[:, :, None]
        of_right = own_class & counted
        of_wrong = ~own_class & counted
        right = histogram(bins, of_right.double().flatten(1), BINS)
        wrong = histogram(bins, of_wrong.double().flatten(1), BINS)
        return torch.cat([right, wrong], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        right, wrong = sums.chunk(2, dim=1)
        below = wrong.cumsum(dim=1) - wrong
        ordered = right * (below + wrong / 2)
        pairs = right.sum(dim=1) * wrong.sum(dim=1)
        return ordered.sum(dim=1) / pairs


plugin = AreaUnderCurve
