"""The contract of a score: what is measured of a model on test samples, and how clients
are summarised.

A *column* is a model that a method has scored, such as ``pre`` or ``global``; a *score*
is what is measured of it. A score turns blocks of test samples into sums, these into
one number of each client, and the clients' numbers into the round's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from hpcfl.scores._block import Block
from hpcfl.scores._described import Described
from hpcfl.scores._summaries import KINDS, Numbers, summarised

__all__ = ["Block", "Numbers", "Score"]


class Score(ABC):
    """Subclass it in one file with ``plugin = YourScore`` at its end; it must have
    ``sums`` and ``number``.

    It is made without arguments, keeps no state, and is recorded under the name that
    the experiment calls it by: a built-in file's, or ``module:Class``.
    ``clients/COLUMN/NAME`` has each client's number, ``COLUMN/NAME`` its mean over
    clients, ``COLUMN/NAME_std`` and ``COLUMN/NAME_worst_tenth`` further summaries.

    Attributes:
        unit: "%" for numbers in [0, 1] that are shown times 100; any other short text,
            or "", for numbers shown as they are.
        better: The direction of better numbers, "up" or "down".
        summaries: How clients are summarised, by ``_summaries.KINDS`` unless
            ``summary`` knows others; the first is what the score's name alone stands
            for.
        shared_test: Whether it needs all clients tested on the same samples.
        by_default: Whether it is computed without being asked for, wherever it can be.
    """

    unit: ClassVar[str] = "%"
    better: ClassVar[Literal["up", "down"]] = "up"
    summaries: ClassVar[tuple[str, ...]] = KINDS
    shared_test: ClassVar[bool] = False
    by_default: ClassVar[bool] = False

    @abstractmethod
    def sums(self, block: Block) -> Tensor:
        """What a block's samples contribute to the numbers of its L clients.

        The contributions of a client's blocks are added, in float64, so they must be
        sums over samples. Samples that ``block.mask`` leaves out must not count, and a
        client's samples may change only its own contribution.

        Returns:
            ``[L, width]``, of any width.
        """

    @abstractmethod
    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        """Each client's number.

        Args:
            sums: ``[n, width]``, the contributions of all its test samples.
            trained: float64 ``[n, classes]``, how many training samples of each class
                it has.

        Returns:
            ``[n]``; NaN for a client without a number.
        """

    def numbers(self, name: str, sums: Tensor, trained: Tensor) -> dict[str, Tensor]:
        """What is recorded of each client, [n] by the name in ``clients/COLUMN/…``: its
        number.
        """
        return {name: self.number(sums, trained)}

    def of_clients(self, name: str, numbers: Mapping[str, Numbers]) -> Numbers:
        """Each client's number [clients] from what ``numbers`` recorded of a column;
        NaN for who has none.
        """
        return numbers[name]

    def summary(self, name: str, numbers: Mapping[str, Numbers]) -> dict[str, float]:
        """The round's summaries of a column by recorded name, from what ``numbers``
        recorded of it.
        """
        by_client = self.of_clients(name, numbers)
        summaries = {}
        for kind in self.summaries:
            if kind in KINDS:
                recorded = self.recorded_as(name, kind)
                summaries[recorded] = summarised(kind, by_client, self.better)
        return summaries

    def recorded_as(self, name: str, kind: str) -> str:
        """The name of the summary ``kind`` in the results, after ``COLUMN/``."""
        return name if kind == self.summaries[0] else f"{name}_{kind}"

    def described(self, name: str) -> Described:
        """What readers of results need to know of the score called ``name``."""
        recorded = {kind: self.recorded_as(name, kind) for kind in self.summaries}
        return {"unit": self.unit, "better": self.better, "recorded": recorded}
