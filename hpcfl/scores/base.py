"""The contract of a score: a metric of a model on test samples, and its summary over
clients.

A *column* is a model that a method has scored, such as ``pre`` or ``global``; a *score*
is a metric of this model. A score turns blocks of test samples into sums, and the sums
into one number for each client. Its summaries turn the clients' numbers into the
round's.
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
        return sum_in_bins(chosen, counted.double(), outputs)[:, : self.classes]


def sum_in_bins(bins: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return the sums of weights that fall into each bin, float64 [L, count].

    Args:
        bins: int64 [L, n], from 0 to count − 1.
        weights: float64 [L, n].
        count: The number of bins.
    """
    sums = torch.zeros(len(bins), count, dtype=torch.float64, device=bins.device)
    return sums.scatter_add_(1, bins, weights)


class Score(ABC):
    """Base class of scores; a subclass must define ``sums`` and ``number``.

    A score is made without arguments and keeps no state. Its name in the results is the
    one in the experiment: that of a built-in score (``built_in.py``), or
    ``module:Class`` for a user's own. ``clients/COLUMN/NAME`` has each client's number,
    ``COLUMN/NAME`` its mean over clients, ``COLUMN/NAME_std`` and
    ``COLUMN/NAME_worst_tenth`` further summaries.

    Attributes:
        unit: "%" for numbers in [0, 1] that are displayed times 100. Any other short
            text, or "", leaves numbers as they are.
        better: The direction of better numbers, "up" or "down".
        summaries: The summaries over clients, from ``KINDS`` unless
            ``summary`` computes others. The score's name alone means the first one.
        shared_test: True if all clients must be tested on the same samples.
        scored_on: The samples: "test", or "patched" for those that an attack changes,
            with the class that the attackers want.
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
        client's samples may change only its own contribution.

        Returns:
            ``[L, width]``, of any width.
        """

    @abstractmethod
    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        """Return each client's number.

        Args:
            sums: ``[n, width]``, the contributions of all test samples of each client.
            trained: float64 ``[n, classes]``, the number of training samples of each
                class.

        Returns:
            ``[n]``; NaN for a client without a number.
        """

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        """Return the recorded numbers of each client, [n] by the name in
        ``clients/COLUMN/…``.

        By default this is its ``number``.
        """
        return {name: self.number(sums, trained)}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        """Return each client's number [clients] from the recorded ``numbers`` of a
        column.

        A client without a number has NaN.
        """
        return numbers[name]

    def summary(self, name: str, numbers: Mapping[str, Numbers]) -> dict[str, float]:
        """Return the round's summaries of a column by recorded name.

        numbers: the recorded numbers of the column, as ``self.numbers`` names them.
        """
        by_client = self.of_clients(name, numbers)
        summaries = {}
        for kind in self.summaries:
            if kind in KINDS:
                recorded = self.recorded_as(name, kind)
                summaries[recorded] = summarise(kind, by_client, self.better)
        return summaries

    def recorded_as(self, name: str, kind: str) -> str:
        """Return the name of the summary ``kind`` in the results, after ``COLUMN/``."""
        return name if kind == self.summaries[0] else f"{name}_{kind}"

    def described(self, name: str) -> Described:
        """Return the score's description for the header of results.

        name: the score's name in the experiment.
        """
        recorded = {kind: self.recorded_as(name, kind) for kind in self.summaries}
        return {"unit": self.unit, "better": self.better, "recorded": recorded}


class Ratio(Score):
    """A sum over a client's test samples, divided by their number; NaN without any.

    A subclass's ``sums`` returns these two, [L, 2]. Both are recorded, as
    ``clients/COLUMN/PART`` and ``clients/COLUMN/total``.

    Attributes:
        part: The name PART of the first.
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
    """Return a summary of the clients' numbers [clients], or NaN if all of them are
    NaN.

    Numbers that are NaN do not count.

    Args:
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
