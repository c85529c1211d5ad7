"""Columns of a table as samples: one column of images, texts or lists, or numbers of several
columns, with categories encoded and identifiers left out (heterogeneity.md D11).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcfl.data import checks
from hpcfl.data.datasets import Owners
from hpcfl.data.sources import ag_news
from hpcfl.errors import UserError
from hpcfl.files import wording

MOST_CATEGORIES = 1_000  # of a column
FEWEST = 10  # rows; values of fewer may differ without being an identifier
# names that pandas gives to an index: in Parquet, in a CSV file that it reads, writes
INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
RESET_INDEX = {"index", "level_0"}  # names that pandas' reset_index gives
IDENTIFIERS = {"id", "ids", "uuid", "guid"}
# words for what may be numbered: a sign where all values differ
NUMBERED = {"number", "nr", "row", "record", "sample", "case", "key", "code", "patient"}
NUMBERED |= {"subject", "user", "customer", "name"}


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


class Features(NamedTuple):
    """Samples as ``npz.make_dataset`` takes them, the names of their numbers, and notes."""

    x: np.ndarray
    names: list[str]
    notes: list[str]


def encode(
    root: Path,
    table: Columns,
    columns: dict[str, np.ndarray],
    trained: int,
    one_hot: bool,
) -> Features:
    """Make the samples of columns whose rows for training come first.

    trained: number of these rows. one_hot: whether each category of a column of texts or
    categories becomes a number, 0 or 1. Raises UserError.
    """
    first, values = next(iter(columns.items()))
    if len(columns) == 1 and values.dtype == object and not one_hot:
        tokens = [ag_news.tokens(text) for text in values]
        return Features(ag_news.encode(tokens, known=trained)[0], [first], [])
    if len(columns) == 1 and values.ndim > 1:
        return Features(values, [first], [])
    parts, names, notes = [], [], []
    for name, values in columns.items():
        where = f"{root}: the column '{name}'"
        if values.ndim > 1:
            raise UserError(
                f"{where} holds {values.dtype} {list(values.shape)}, and there are other columns; "
                f"set data.features = ['{name}'], or to the columns of numbers"
            )
        is_categorical = values.dtype == object or table.is_categorical(name)
        if one_hot and is_categorical:
            class_names = table.class_names(name)
            if class_names is not None:
                values = np.array(class_names, object)[values]
            part = _encode_categories(where, name, values, trained)
        else:
            part = _take_numbers(where, name, values, is_categorical)
        parts.append(part.x)
        names += part.names
        notes += part.notes
    return Features(np.concatenate(parts, axis=1), names, notes)


def _take_numbers(
    where: str, name: str, values: np.ndarray, is_categorical: bool
) -> Features:
    """Return a column of numbers as it is. Raises UserError for texts."""
    if values.dtype == object:
        text = next((text for text in values if not checks.is_number(text)), values[0])
        raise UserError(
            f"{where} is not one of numbers: it holds {text!r:.60}; set data.encode = 'one-hot' "
            "to have an input for each of its values (data.normalise = 'statistics' standardises "
            "the other columns), or list the columns of a sample in data.features"
        )
    checks.refuse_indistinct(where, values)
    notes = []
    if is_categorical:
        notes.append(
            f"{where} holds categories, which are used by number; data.encode = 'one-hot' "
            "gives each an input of its own"
        )
    return Features(values.astype(np.float32)[:, None], [name], notes)


def _encode_categories(
    where: str, name: str, values: np.ndarray, trained: int
) -> Features:
    """Encode a column by the categories of its first ``trained`` rows; others are zeros."""
    known = np.unique(values[:trained])
    if len(known) > MOST_CATEGORIES:
        raise UserError(
            f"{where} has {len(known):,} categories, at most {MOST_CATEGORIES:,} are encoded; "
            "leave it out by data.features"
        )
    encoded = (values[:, None] == known).astype(np.float32)
    unknown = [str(category) for category in np.setdiff1d(values, known)]
    notes = []
    if unknown:
        notes.append(
            f"{where}: no training row has the categories {wording.list_names(unknown)} of test "
            "rows; their inputs are all 0"
        )
    return Features(encoded, [f"{name}={category}" for category in known], notes)


def is_index(name: str) -> bool:
    """Return whether pandas gives this name to an index."""
    return INDEX.fullmatch(name) is not None


def looks_like_identifier(
    name: str, values: np.ndarray, rows_by_file: Sequence[int]
) -> bool:
    """Return whether a column names or numbers its rows, or groups of them.

    Whole numbers and texts do that which are called so, such as ``patient_id``; running
    or ascending numbers, in each file or through all; and different words in all rows.
    """
    if values.ndim > 1 or values.dtype.kind not in "iufO" or not len(values):
        return False
    if values.dtype.kind == "f" and (values != np.round(values)).any():
        return False
    distinct = len(np.unique(values))
    all_differ = distinct == len(values)
    # of ``PatientID`` patient and id
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    is_called_so = name.lower() in RESET_INDEX or bool(words & IDENTIFIERS)
    if is_called_so and (all_differ or distinct > 2):
        return True
    may_be_one = all_differ and len(values) >= FEWEST
    if may_be_one and words & NUMBERED:
        return True
    if values.dtype == object:
        return may_be_one and not any(" " in text.strip() for text in values)
    files = np.split(values, np.cumsum(rows_by_file)[:-1])
    return _is_running(values) or all(map(_is_running, files))


def find_identifiers(
    columns: dict[str, np.ndarray], rows_by_file: Sequence[int]
) -> list[str]:
    """Return the columns that look like identifiers; a lone column of texts does not."""
    if len(columns) == 1 and next(iter(columns.values())).dtype == object:
        return []  # a sample is a text, which may well be a single word
    identifiers = []
    for name, values in columns.items():
        if looks_like_identifier(name, values, rows_by_file):
            identifiers.append(name)
    return identifiers


def _is_running(numbers: np.ndarray) -> bool:
    """Return whether numbers ascend row by row, or are consecutive in any order."""
    if len(numbers) < FEWEST:
        return False
    ordered = np.sort(numbers)
    ascend = bool((numbers[1:] > numbers[:-1]).all())
    consecutive = bool((ordered[1:] == ordered[:-1] + 1).all())
    return ascend or consecutive
