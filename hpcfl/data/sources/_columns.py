"""Columns of a table by name."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np

from hpcfl.data.datasets import Owners


class Columns(ABC):
    """A table that is open.

    Attributes:
        names: columns in order.
        index: columns that pandas wrote as its index of the rows.
        rows_by_file: number of rows of each file, in order.
        split: part of each row, where names of files say so; else None.
        clients: owners of the rows, where names of folders say so; else None.
        notes: one line each for a user to know.
    """

    names: list[str]
    index: Collection[str] = ()
    rows_by_file: Sequence[int] = ()
    split: np.ndarray | None = None
    clients: Owners | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def column(self, name: str) -> np.ndarray:
        """Return the values of a column, [rows, …]: numbers, uint8 images [rows,
        channels, height, width], or texts, as objects.

        Raises UserError for other kinds of values, missing ones, NaN and infinities.
        """

    def as_written(self, name: str) -> np.ndarray:
        """Return a column of names: texts as in the file, or numbers that name the same."""
        return self.column(name)

    def class_names(self, name: str) -> list[str] | None:
        """Return the names that the table gives to the class numbers in a column, or
        None.
        """
        return None

    def is_categorical(self, name: str) -> bool:
        """Return whether the table declares the values of a column as categories."""
        return False
