"""The contract of a score: a metric of a model on test samples, and its summary over
clients.

A *column* is a model that a method has scored, such as ``pre`` or ``global``; a *score*
is a metric of this model. A score turns blocks of test samples into sums, and the sums
into one number for each client. Its summaries turn the clients' numbers into the
round's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from hpcfl.scores.block import Block
from hpcfl.scores.described import Described
from hpcfl.scores.summaries import KINDS, Numbers, summarised

__all__ = ["Block", "Numbers", "Score"]


class Score(ABC):
    """Base class of scores; a subclass must define ``sums`` and ``number``.

    A subclass is one file with ``plugin = YourScore`` at its end. It is made without
    arguments and keeps no state. Its name in the results is the one in the experiment:
    a built-in file's name, or ``module:Class``. ``clients/COLUMN/NAME`` has each
    client's number, ``COLUMN/NAME`` its mean over clients, ``COLUMN/NAME_std`` and
    ``COLUMN/NAME_worst_tenth`` further summaries.

    Attributes:
        unit: "%" for numbers in [0, 1] that are displayed times 100. Any other short
            text, or "", leaves numbers as they are.
        better: The direction of better numbers, "up" or "down".
        summaries: The summaries over clients, from ``_summaries.KINDS`` unless
            ``summary`` computes others. The score's name alone means the first one.
        shared_test: True if all clients must be tested on the same samples.
        by_default: True if every run that can compute the score does so.
    """

    unit: ClassVar[str] = "%"
    better: ClassVar[Literal["up", "down"]] = "up"
    summaries: ClassVar[tuple[str, ...]] = KINDS
    shared_test: ClassVar[bool] = False
    by_default: ClassVar[bool] = False

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
                summaries[recorded] = summarised(kind, by_client, self.better)
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
