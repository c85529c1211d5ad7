"""A block of test samples with the clients' predictions, and counts that several scores
need.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class Block:
    """b test samples of each of L clients; all scores share the counts derived from
    them.

    Attributes:
        logits: [L, b, outputs], with at least as many outputs as classes.
        labels: int64 [L, b].
        mask: bool [L, b], False for padding samples, which must not count.
        classes: The number of classes.
    """

    logits: Tensor
    labels: Tensor
    mask: Tensor
    classes: int

    @cached_property
    def samples(self) -> Tensor:
        """Number of samples that count, float64 [L]."""
        return self.mask.double().sum(dim=1)

    @cached_property
    def predicted(self) -> Tensor:
        """Class with the largest logit, int64 [L, b]."""
        return self.logits.argmax(dim=2)

    @cached_property
    def right(self) -> Tensor:
        """Mask of the samples that count and are predicted correctly, bool [L, b]."""
        return (self.predicted == self.labels) & self.mask

    @cached_property
    def right_by_class(self) -> Tensor:
        """Number of correct predictions of each class, float64 [L, classes]."""
        return self._by_class(self.labels, self.right)

    @cached_property
    def tested_by_class(self) -> Tensor:
        """Number of samples of each class, float64 [L, classes]."""
        return self._by_class(self.labels, self.mask)

    @cached_property
    def predicted_by_class(self) -> Tensor:
        """Number of predictions of each class, float64 [L, classes]."""
        return self._by_class(self.predicted, self.mask)

    def _by_class(self, chosen: Tensor, counted: Tensor) -> Tensor:
        """Count the samples of each class.

        Args:
            chosen: The class of each sample, int64 [L, b].
            counted: True for the samples that count, bool [L, b].
        """
        # A model may have, and so predict, more outputs than there are classes.
        outputs = self.logits.shape[2]
        return histogram(chosen, counted.double(), outputs)[:, : self.classes]


def histogram(bins: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return the sums of weights that fall into each bin, float64 [L, count].

    Args:
        bins: int64 [L, n], from 0 to count − 1.
        weights: float64 [L, n].
        count: The number of bins.
    """
    sums = torch.zeros(len(bins), count, dtype=torch.float64, device=bins.device)
    return sums.scatter_add_(1, bins, weights)
