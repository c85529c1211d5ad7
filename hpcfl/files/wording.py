"""Names and numbers from a user's file: shortened for messages, normalised for
comparison, and searched for values that no model can use.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np

LETTERS = 80  # of a name
MOST = 5  # names in a line


def shorten(name: str) -> str:
    """Return the beginning of a name, in printable letters."""
    printable = repr(name)[1:-1]
    return printable if len(printable) <= LETTERS else f"{printable[:LETTERS]}…"


def list_names(names: Sequence[str]) -> str:
    """Return the first of the names, and how many more there are; "" for none."""
    return list_first([shorten(name) for name in names])


def list_first(phrases: Sequence[str]) -> str:
    """Return the first of the phrases, and how many more there are; "" for none."""
    more = f" and {len(phrases) - MOST} more" if len(phrases) > MOST else ""
    return ", ".join(phrases[:MOST]) + more


def fold(name: str) -> str:
    """Return a name without case, spaces and Unicode form, for comparison of spellings."""
    return "".join(unicodedata.normalize("NFKC", name).split()).casefold()


def describe_nonfinite(array: np.ndarray) -> str:
    """Return the place and value of the first not-a-number or infinity, such as
    ``[3, 0] is nan``; "" where there is none.

    Values beyond float32, in which models compute, count as infinities.
    """
    if not array.size or array.dtype.kind != "f":
        return ""
    largest = np.finfo(np.float32).max
    if -largest <= array.min() and array.max() <= largest:
        return ""
    is_usable = np.abs(array) <= largest
    first = np.unravel_index(np.argmin(is_usable), array.shape)
    place = [int(index) for index in first]
    return f"{place} is {array[first]}"
