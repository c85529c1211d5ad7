"""Base classes of scores: metrics of a model on test samples, and their summaries over
clients.

A *column* is a model that a method has scored, such as ``pre`` or ``global``; a *score*
is a metric of this model. A score computes sums over blocks of test samples, and from
the sums one number for each client. Its summaries combine the clients' numbers to the
numbers of a round.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfl.scores.metric_names import Described

Numbers = NDArray[np.float64]
KINDS = ("mean", "std", "worst_tenth")


@dataclass
class Block:
    """Predictions for b test samples of each of L clients, and counts that all scores
    share.

    Attributes:
        logits: Outputs of the models, [L, b, outputs]; there may be more outputs than
            classes, but not fewer.
        labels: Classes of the samples, int64 [L, b].
        mask: Mask of the samples, bool [L, b]; False for padding, which must not count.
        classes: Number of classes.
    """

    logits: Tensor
    labels: Tensor
    mask: Tensor
    classes: int

    @cached_property
    def samples(self) -> Tensor:
        """Number of samples without padding, float64 [L]."""
        return self.mask.double().sum(dim=1)

    @cached_property
    def predicted(self) -> Tensor:
        """Class with the largest logit, int64 [L, b]."""
        return self.logits.argmax(dim=2)

    @cached_property
    def right(self) -> Tensor:
        """Mask of the correctly predicted samples, bool [L, b]; False for padding."""
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
            counted: Mask of the samples to count, bool [L, b].
        """
        # A model with more outputs than classes may predict one of the others.
        outputs = self.logits.shape[2]
        return sum_in_bins(chosen, counted.double(), outputs)[:, : self.classes]


def sum_in_bins(bins: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return the sum of the weights in each bin, float64 [L, count].

    Args:
        bins: The bin of each weight, int64 [L, n], from 0 to count − 1.
        weights: The weights, float64 [L, n].
        count: The number of bins.
    """
    sums = torch.zeros(len(bins), count, dtype=torch.float64, device=bins.device)
    return sums.scatter_add_(1, bins, weights)


class Score(ABC):
    """Base class of scores; a subclass must define ``sums`` and ``number``.

    A score is created without arguments and has no state. Results use its name in the
    experiment: the name of a built-in score (``built_in.py``), or ``module:Class`` for
    a user's score. ``clients/COLUMN/NAME`` has each client's number, ``COLUMN/NAME``
    the mean over clients, ``COLUMN/NAME_std`` and ``COLUMN/NAME_worst_tenth`` further
    summaries.

    Attributes:
        unit: Unit of the numbers. "%" is for numbers in [0, 1], which are multiplied by
            100 for display; numbers with any other short text, or "", are unchanged.
        better: Direction of better numbers, "up" or "down".
        summaries: Summaries over clients, from ``KINDS`` unless ``summary`` computes
            others. The score's name without a summary refers to the first one.
        shared_test: Whether all clients must be tested on the same samples.
        scored_on: Samples to score: "test", or "patched" for test samples with the
            patch of a backdoor and its target class as label.
    """

    unit: ClassVar[str] = "%"
    better: ClassVar[Literal["up", "down"]] = "up"
    summaries: ClassVar[tuple[str, ...]] = KINDS
    shared_test: ClassVar[bool] = False
    scored_on: ClassVar[Literal["test", "patched"]] = "test"

    @abstractmethod
    def sums(self, block: Block) -> Tensor:
        """Return the contributions of a block's samples to the numbers of its L
        clients.

        The engine adds the contributions of a client's blocks in float64, so they must
        be sums over samples. Samples that ``block.mask`` excludes must not count. A
        client's contribution must depend only on its samples.

        Returns:
            The contributions ``[L, width]``, with any width.
        """

    @abstractmethod
    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        """Return each client's number, which must depend only on its row.

        Args:
            sums: The contributions of all test samples of each client, ``[n, width]``.
            trained: The number of training samples of each class, float64 ``[n,
                classes]``.

        Returns:
            The numbers ``[n]``; NaN for a client without a number.
        """

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        """Return the numbers [n] to record for each client, by the name after
        ``clients/COLUMN/``; by default the ``number`` under the score's ``name``.
        """
        return {name: self.number(sums, trained)}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        """Return each client's number [clients]; NaN for a client without a number.

        Args:
            name: The score's name in the experiment.
            numbers: The recorded numbers of a column, as ``self.numbers`` names them.
        """
        return numbers[name]

    def summary(self, name: str, numbers: Mapping[str, Numbers]) -> dict[str, float]:
        """Return the summaries of a column in a round, by their recorded names.

        The arguments are those of ``of_clients``.
        """
        by_client = self.of_clients(name, numbers)
        summaries = {}
        for kind in self.summaries:
            if kind in KINDS:
                recorded = self.recorded_as(name, kind)
                summaries[recorded] = summarise(kind, by_client, self.better)
        return summaries

    def recorded_as(self, name: str, kind: str) -> str:
        """Return the recorded name of the summary ``kind``, after ``COLUMN/``."""
        return name if kind == self.summaries[0] else f"{name}_{kind}"

    def described(self, name: str) -> Described:
        """Return the description of the score ``name`` for the header of results."""
        recorded = {kind: self.recorded_as(name, kind) for kind in self.summaries}
        return {"unit": self.unit, "better": self.better, "recorded": recorded}


class Ratio(Score):
    """A mean over a client's test samples; NaN for a client without test samples.

    ``sums`` of a subclass returns the sum and the number of the samples, [L, 2]. Both
    are recorded, as ``clients/COLUMN/PART`` and ``clients/COLUMN/total``.

    Attributes:
        part: Name PART of the recorded sum.
    """

    part: ClassVar[str]

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        return torch.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], torch.nan)

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        return {self.part: sums[:, 0], "total": sums[:, 1]}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        part, total = numbers[self.part], numbers["total"]
        return np.divide(part, total, out=np.full_like(total, np.nan), where=total > 0)


def summarise(kind: str, numbers: Numbers, better: str = "up") -> float:
    """Return a summary of the clients' numbers without NaN; NaN if all are NaN.

    Args:
        numbers: The clients' numbers [clients].
        kind: One of KINDS. "mean" is the mean with equal weights and "std" the
            population standard deviation. "worst_tenth" is the mean over the worst
            tenth of clients, at least one client.
        better: "up" if the lowest numbers are the worst, "down" if the highest are.
    """
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return math.nan
    if kind == "worst_tenth":
        ordered = np.sort(known)
        known = (ordered if better == "up" else ordered[::-1])[
            : max(1, len(known) // 10)
        ]
    return float(known.std() if kind == "std" else known.mean())
