"""A block of test samples with the clients' predictions of them, and counts that
several scores need.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class Block:
    """b test samples of each of L clients; counts derived from them are computed once
    for all scores.

    logits: [L, b, outputs], at least as many outputs as classes. labels: int64 [L, b].
    mask: bool [L, b], False for samples that only fill up a shorter row and must not
    count. classes: how many there are.
    """

    logits: Tensor
    labels: Tensor
    mask: Tensor
    classes: int

    @cached_property
    def samples(self) -> Tensor:
        """How many samples count, float64 [L]."""
        return self.mask.double().sum(dim=1)

    @cached_property
    def predicted(self) -> Tensor:
        """The class with the largest logit, int64 [L, b]."""
        return self.logits.argmax(dim=2)

    @cached_property
    def right(self) -> Tensor:
        """Which samples count and are predicted correctly, bool [L, b]."""
        return (self.predicted == self.labels) & self.mask

    @cached_property
    def right_by_class(self) -> Tensor:
        """Correct predictions of each class, float64 [L, classes]."""
        return self._by_class(self.labels, self.right)

    @cached_property
    def tested_by_class(self) -> Tensor:
        """Samples of each class, float64 [L, classes]."""
        return self._by_class(self.labels, self.mask)

    @cached_property
    def predicted_by_class(self) -> Tensor:
        """How often each class is predicted, float64 [L, classes]."""
        return self._by_class(self.predicted, self.mask)

    def _by_class(self, chosen: Tensor, counted: Tensor) -> Tensor:
        """How many samples have each class in ``chosen`` [L, b], of those that are
        ``counted`` [L, b].
        """
        # A model may have, and so predict, more outputs than there are classes.
        outputs = self.logits.shape[2]
        return histogram(chosen, counted.double(), outputs)[:, : self.classes]


def histogram(bins: Tensor, weights: Tensor, count: int) -> Tensor:
    """The sums of weights that fall into each bin, float64 [L, count].

    Args:
        bins: int64 [L, n], from 0 to count − 1.
        weights: float64 [L, n].
        count: How many bins there are.
    """
    sums = torch.zeros(len(bins), count, dtype=torch.float64, device=bins.device)
    return sums.scatter_add_(1, bins, weights)
