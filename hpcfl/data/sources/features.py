"""Convert columns of a table to samples.

Samples are one column of images, texts or lists, or numbers from several columns.
Categories are encoded and identifiers are left out (heterogeneity.md D11).
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

MOST_CATEGORIES = 1_000  # limit for a column
MIN_ROWS = 10  # rows; with fewer, distinct values do not suggest an identifier
# names of pandas' index: in Parquet, in CSV files after reading, in CSV files
INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
RESET_INDEX = {"index", "level_0"}  # names from pandas' reset_index
IDENTIFIERS = {"id", "ids", "uuid", "guid"}
# words that suggest an identifier if all values differ
NUMBERED = {"number", "nr", "row", "record", "sample", "case", "key", "code", "patient"}
NUMBERED |= {"subject", "user", "customer", "name"}


class Columns(ABC):
    """An open table.

    Attributes:
        names: names of the columns, in order.
        index: names of the columns that pandas wrote as index of the rows.
        rows_by_file: number of rows in each file, in order.
        split: part of each row according to file names, or None.
        clients: owners of the rows according to folder names, or None.
        notes: notes for the user, one line each.
    """

    names: list[str]
    index: Collection[str] = ()
    rows_by_file: Sequence[int] = ()
    split: np.ndarray | None = None
    clients: Owners | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def read_column(self, name: str) -> np.ndarray:
        """Return the values of a column, [rows, …]: numbers, uint8 images [rows,
        channels, height, width], or texts as objects.

        Raises UserError for other types, missing values, NaN and infinities.
        """

    def read_as_written(self, name: str) -> np.ndarray:
        """Return a column of names: texts as in the file, or equivalent numbers."""
        return self.read_column(name)

    def class_names(self, name: str) -> list[str] | None:
        """Return the class names of a column of class numbers, or None."""
        return None

    def is_categorical(self, name: str) -> bool:
        """Return whether the table declares the values of a column as categories."""
        return False


class Features(NamedTuple):
    """Encoded samples.

    Attributes:
        x: samples as ``npz.make_dataset`` accepts them.
        names: name of each input.
        notes: notes for the user.
        numbers_words: Whether the samples are numbered words of texts.
    """

    x: np.ndarray
    names: list[str]
    notes: list[str]
    numbers_words: bool = False


def encode(
    root: Path,
    table: Columns,
    columns: dict[str, np.ndarray],
    trained: int,
    one_hot: bool,
) -> Features:
    """Convert columns to samples.

    Args:
        root: file or folder of the table, for messages.
        table: the table of the columns.
        columns: values by column name; rows for training come first.
        trained: number of rows for training.
        one_hot: Whether each category of a column of texts or categories becomes an
            input, 0 or 1.

    Raises:
        UserError: A column cannot be converted.
    """
    first, values = next(iter(columns.items()))
    is_text = len(columns) == 1 and values.dtype == object and not one_hot
    if is_text and not _looks_numeric(values):
        tokens = [ag_news.tokenise(text) for text in values]
        ids, _ = ag_news.encode(tokens, known=trained)
        return Features(ids, [first], [], numbers_words=True)
    if len(columns) == 1 and values.ndim > 1:
        return Features(values, [first], [])
    parts, names, notes = [], [], []
    for name, values in columns.items():
        where = f"{root}: the column '{name}'"
        if values.ndim > 1:
            raise UserError(
                f"{where} holds {values.dtype} {list(values.shape)} and cannot be combined with "
                f"other columns; set data.features = ['{name}'], or list only columns of numbers"
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


def _looks_numeric(texts: np.ndarray) -> bool:
    """Return whether most texts are numbers, possibly with a decimal comma."""
    numbers = [text for text in texts if checks.is_number(text.replace(",", "."))]
    return 2 * len(numbers) > len(texts)


def _take_numbers(
    where: str, name: str, values: np.ndarray, is_categorical: bool
) -> Features:
    """Return a column of numbers without encoding. Raises UserError for texts."""
    if values.dtype == object:
        text = next((text for text in values if not checks.is_number(text)), values[0])
        raise UserError(
            f"{where} does not hold numbers: it has {text!r:.60}; set data.encode = 'one-hot' "
            "to make an input of each of its values (data.normalise = 'statistics' standardises "
            "the other columns), or list the columns of a sample in data.features"
        )
    checks.refuse_indistinct(where, values)
    notes = []
    if is_categorical:
        notes.append(
            f"{where} holds categories, which are used as numbers; data.encode = 'one-hot' "
            "makes an input of each category"
        )
    return Features(values.astype(np.float32)[:, None], [name], notes)


def _encode_categories(
    where: str, name: str, values: np.ndarray, trained: int
) -> Features:
    """Encode a column one-hot by the categories in its first ``trained`` rows.

    Other categories become zeros.
    """
    known = np.unique(values[:trained])
    if len(known) > MOST_CATEGORIES:
        raise UserError(
            f"{where} has {len(known):,} categories, more than {MOST_CATEGORIES:,}; "
            "omit it from data.features"
        )
    encoded = (values[:, None] == known).astype(np.float32)
    unknown = [str(category) for category in np.setdiff1d(values, known)]
    notes = []
    if unknown:
        notes.append(
            f"{where}: test rows have the categories {wording.list_names(unknown)}, training rows "
            "do not; their inputs are all 0"
        )
    return Features(encoded, [f"{name}={category}" for category in known], notes)


def is_index(name: str) -> bool:
    """Return whether a name is one that pandas gives to an index."""
    return INDEX.fullmatch(name) is not None


def looks_like_identifier(
    name: str, values: np.ndarray, rows_by_file: Sequence[int]
) -> bool:
    """Return whether a column seems to name or number rows, or groups of rows.

    Such columns are whole numbers or texts with a name such as ``patient_id``;
    consecutive or ascending numbers, in each file or overall; and words that differ in
    all rows.

    Args:
        name: name of the column.
        values: its values.
        rows_by_file: number of rows in each file.
    """
    if values.ndim > 1 or values.dtype.kind not in "iufO" or not len(values):
        return False
    if values.dtype.kind == "f" and (values != np.round(values)).any():
        return False
    distinct = len(np.unique(values))
    all_differ = distinct == len(values)
    # ``PatientID`` has the words patient and id
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    is_called_so = name.lower() in RESET_INDEX or bool(words & IDENTIFIERS)
    if is_called_so and (all_differ or distinct > 2):
        return True
    may_be_one = all_differ and len(values) >= MIN_ROWS
    if may_be_one and words & NUMBERED:
        return True
    if values.dtype == object:
        return may_be_one and not any(" " in text.strip() for text in values)
    files = np.split(values, np.cumsum(rows_by_file)[:-1])
    return _is_running(values) or all(map(_is_running, files))


def find_identifiers(
    columns: dict[str, np.ndarray], rows_by_file: Sequence[int]
) -> list[str]:
    """Return the columns that look like identifiers, except a single column of texts."""
    if len(columns) == 1 and next(iter(columns.values())).dtype == object:
        return []  # each sample is a text, possibly of one word
    identifiers = []
    for name, values in columns.items():
        if looks_like_identifier(name, values, rows_by_file):
            identifiers.append(name)
    return identifiers


def _is_running(numbers: np.ndarray) -> bool:
    """Return whether numbers ascend by row, or are consecutive in any order."""
    if len(numbers) < MIN_ROWS:
        return False
    ordered = np.sort(numbers)
    ascend = bool((numbers[1:] > numbers[:-1]).all())
    consecutive = bool((ordered[1:] == ordered[:-1] + 1).all())
    return ascend or consecutive
