"""Contract of a shift: transformations of samples, one for each group of clients
(heterogeneity.md H0).

A shift is a validated section of the experiment file, a table of ``[[shift]]``. It
gives a list of ``Concept``, one for each group; who is in which group, and from which
round on, is the same for all kinds (``groups.py``), and so is when
samples are transformed (``hpcfl/data/shifted.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment import sections
from hpcfl.rows import randomness

# Raw samples [n, *shape] of one concept and their numbers in the data set [n] → raw
# samples of the same type and shape, in a new tensor.
Transform = Callable[[Tensor, np.ndarray], Tensor]


@dataclass(frozen=True, eq=False)
class Concept:
    """A transformation of the samples that some clients have.

    Attributes:
        name: what tables call it, another one for another transformation.
        images: what becomes of samples, None where they stay.
        labels: int64 [classes], what becomes of each class, None where they stay.
    """

    name: str
    images: Transform | None = None
    labels: np.ndarray | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether samples and labels stay bit for bit the same."""
        return self.images is None and self.labels is None


@dataclass(frozen=True)
class Facts:
    """Facts about the experiment that a shift is drawn for.

    Attributes:
        place: its own in the list of shifts.
        seed: that of the partition.
        clients, newcomers: how many there are.
        shape, dtype, scale, classes: of the data set's samples; ``scale`` is the value
            of white.
    """

    place: int
    seed: int
    clients: int
    newcomers: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: float
    classes: int

    def generator(self, purpose: str, *number: int) -> np.random.Generator:
        """Return random numbers for one purpose, of a sample, client or group by its
        number: the same on any rank, in any order, whichever clients take part.
        """
        place = self.place
        return randomness.generator(self.seed, "shift", place, purpose, *number)

    def wrong(self, key: str, problem: str) -> UserError:
        """Return the error about a key of this shift."""
        return UserError(f"shift.{self.place}.{key}: {problem}")

    def require_values(self, kind: str) -> None:
        """Raise UserError where samples are token ids, not values."""
        if self.dtype in (torch.int32, torch.int64):
            raise self.wrong("kind", f"'{kind}' changes values; these samples are text")

    def require_images(self, kind: str) -> None:
        """Raise UserError where samples are not images [channels, height, width]."""
        self.require_values(kind)
        if len(self.shape) != 3:
            shape = list(self.shape)
            raise self.wrong(
                "kind", f"'{kind}' changes images; these samples have the shape {shape}"
            )


def to_range(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return values of which 1 is white as those of a data set whose white is
    ``scale``.

    Of bytes they are cut off at black and white, and the nearest whole numbers, halves
    to even; floats are not cut off.
    """
    if dtype == torch.uint8:
        return x.clamp(0, 1).mul(scale).round().to(dtype)
    return x.mul(scale).to(dtype)


class Shift(sections.Shift, ABC):
    """Subclass it in one file with ``plugin = YourShift`` at its end.

    Attributes:
        untouched: what a group whose samples stay as they are is called.
    """

    untouched: ClassVar[str] = "as it is"

    @abstractmethod
    def concepts(self, facts: Facts) -> list[Concept]:
        """List a concept for each group, in the order of groups; two of the same name
        are one.

        Raises UserError where the data cannot be changed so.
        """
