"""Columns of a table by name, and checks of their names and numbers."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from hpcfl.data.owners import Owners
from hpcfl.errors import UserError

LARGEST = float(np.finfo(np.float32).max)
TRIED = 10_000  # numbers of a column


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


def refuse_repeated(where: object, what: str, names: Collection[str]) -> None:
    """Raise UserError for a name that stands twice."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(
            f"{where}: the {what} '{name}' stands {count} times; names must differ"
        )


def refuse_infinite(where: str, values: np.ndarray, row: int) -> None:
    """Raise UserError for NaN and for numbers beyond float32.

    row: number of the first row of ``values``.
    """
    if values.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32))
    if not wrong.any():
        return
    position = tuple(np.argwhere(wrong)[0].tolist())
    entry = f", entry {list(position[1:])}" if position[1:] else ""
    raise UserError(
        f"{where}: row {row + position[0]}{entry} holds {values[position]}; numbers must be "
        f"finite, at most {LARGEST:.2g} in magnitude"
    )


def refuse_indistinct(where: str, values: np.ndarray) -> None:
    """Raise UserError for numbers [n] most of which would be equal in float32.

    The first rows, at most TRIED, are compared.
    """
    if values.dtype == np.float32:
        return
    tried = values[:TRIED]
    before = len(np.unique(tried))
    after = len(np.unique(tried.astype(np.float32)))
    if 2 * after < before:
        raise UserError(
            f"{where} has {before:,} different numbers, of which float32 keeps {after:,}; "
            "subtract their minimum, or leave the column out"
        )


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
