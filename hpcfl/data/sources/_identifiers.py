"""Columns that number or name the rows and say nothing about them."""

import re
from collections.abc import Sequence

import numpy as np

FEWEST = (
    10  # rows; with fewer, values that happen to differ are no sign of an identifier
)
# names that pandas gives to an index: in Parquet, in a CSV file that it reads, writes
INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
RESET_INDEX = {"index", "level_0"}  # names that pandas' reset_index gives
IDENTIFIERS = {"id", "ids", "uuid", "guid"}
# words for what may be numbered: a sign where all values differ
NUMBERED = {"number", "nr", "row", "record", "sample", "case", "key", "code", "patient"}
NUMBERED |= {"subject", "user", "customer", "name"}


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
    words = _words(name)
    is_called_so = name.lower() in RESET_INDEX or bool(words & IDENTIFIERS)
    if is_called_so and (all_differ or distinct > 2):
        return True
    if words & NUMBERED and all_differ and len(values) >= FEWEST:
        return True
    if values.dtype == object:
        are_words = not any(" " in text.strip() for text in values)
        return are_words and all_differ and len(values) >= FEWEST
    files = np.split(values, np.cumsum(rows_by_file)[:-1])
    return _is_running(values) or all(map(_is_running, files))


def _words(name: str) -> set[str]:
    """Return the words of a name, lower case: of ``PatientID`` patient and id."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return {word.lower() for word in words}


def _is_running(numbers: np.ndarray) -> bool:
    """Return whether numbers ascend row by row, or are consecutive in any order."""
    if len(numbers) < FEWEST:
        return False
    ordered = np.sort(numbers)
    ascend = bool((numbers[1:] > numbers[:-1]).all())
    consecutive = bool((ordered[1:] == ordered[:-1] + 1).all())
    return ascend or consecutive
