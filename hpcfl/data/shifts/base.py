"""Contract of a shift: transformations of samples, one for each group of clients
(heterogeneity.md H0).

A shift is a section of the experiment file, a table of ``[[shift]]``. It returns a
``Concept`` for each group. For all kinds of shifts, ``groups.py`` assigns clients to
groups and rounds, and ``hpcfl/data/shifted.py`` transforms the samples.
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

# (raw samples [n, *shape], their numbers in the data set [n]) → changed raw samples of
# the same type and shape, in a new tensor.
Transform = Callable[[Tensor, np.ndarray], Tensor]


@dataclass(frozen=True, eq=False)
class Concept:
    """A transformation of the samples of a group of clients.

    Attributes:
        name: name of the transformation in tables, unique among the shift's concepts.
        images: transformation of samples, or None.
        labels: new number of each class, int64 [classes], or None.
    """

    name: str
    images: Transform | None = None
    labels: np.ndarray | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether samples and labels are unchanged."""
        return self.images is None and self.labels is None


@dataclass(frozen=True)
class Facts:
    """Facts about an experiment on which a shift depends.

    Attributes:
        place: position of the shift in ``[[shift]]``.
        seed: seed of the partition.
        clients: number of clients.
        newcomers: number of newcomers.
        shape: shape of a sample.
        dtype: type of the samples.
        scale: value of white.
        classes: number of classes.
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
        """Return a generator of random numbers.

        Its numbers depend on neither rank, order nor the selected clients.

        Args:
            purpose: part of the key.
            number: number of a sample, client or group, part of the key.
        """
        place = self.place
        return randomness.generator(self.seed, "shift", place, purpose, *number)

    def make_error(self, key: str, problem: str) -> UserError:
        """Return a UserError about a key of this shift."""
        return UserError(f"shift.{self.place}.{key}: {problem}")

    def require_values(self, kind: str) -> None:
        """Raise UserError if samples are token ids."""
        if self.dtype in (torch.int32, torch.int64):
            raise self.make_error(
                "kind", f"'{kind}' changes values; these samples are text"
            )

    def require_images(self, kind: str) -> None:
        """Raise UserError if samples are not images [channels, height, width]."""
        self.require_values(kind)
        if len(self.shape) != 3:
            shape = list(self.shape)
            raise self.make_error(
                "kind", f"'{kind}' changes images; these samples have the shape {shape}"
            )


def to_range(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Convert values from the scale 0 … 1 to the scale and type of a data set.

    Values of uint8 are clamped and rounded to the nearest whole number, halves to even;
    floats are not clamped.

    Args:
        x: values; 1 is white.
        dtype: type of the data set.
        scale: value of white in the data set.
    """
    if dtype == torch.uint8:
        return x.clamp(0, 1).mul(scale).round().to(dtype)
    return x.mul(scale).to(dtype)


class Shift(sections.Shift, ABC):
    """Base class of shifts: subclass it in one file that ends with ``plugin =
    YourShift``.

    Attributes:
        untouched: label of the group without a shift.
        is_absolute: Whether its numbers are for samples with values from 0 to 1.
    """

    untouched: ClassVar[str] = "as it is"
    is_absolute: ClassVar[bool] = False

    @abstractmethod
    def concepts(self, facts: Facts) -> list[Concept]:
        """Return the concept of each group, in the order of groups.

        Concepts with equal names are one concept. Raises UserError if the shift does
        not fit the data set.
        """
