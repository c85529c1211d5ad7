"""Top-5 accuracy: the share of a client's test samples whose class is among the five
with the largest logits.

A class with a logit equal to the sample's own does not push it out. With five classes
or fewer it is 1.
"""

import torch
from torch import Tensor

from hpcfl.scores._ratio import Ratio
from hpcfl.scores.base import Block

TOP = 5


class Top5(Ratio):
    part = "correct_top5"

    def sums(self, block: Block) -> Tensor:
        own = block.logits.gather(2, block.labels[:, :, None])
        larger = (block.logits > own).sum(dim=2)
        right = (larger < TOP) & block.mask
        return torch.stack([right.double().sum(dim=1), block.samples], dim=1)


plugin = Top5
