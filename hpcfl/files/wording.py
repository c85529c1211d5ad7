"""Names from a user's file, shortened for messages and normalised for comparison."""

import unicodedata
from collections.abc import Sequence

LETTERS = 80  # of a name
MOST = 5  # names in a line


def shorten(name: str) -> str:
    """Return the beginning of a name, in printable letters."""
    printable = repr(name)[1:-1]
    return printable if len(printable) <= LETTERS else f"{printable[:LETTERS]}…"


def list_names(names: Sequence[str]) -> str:
    """Return the first of the names, and how many more there are; "" for none."""
    return list_first([shorten(name) for name in names])


def list_first(phrases: Sequence[str], most: int = MOST) -> str:
    """Return the first of the phrases, and how many more there are; "" for none."""
    more = f" and {len(phrases) - most} more" if len(phrases) > most else ""
    return ", ".join(phrases[:most]) + more


def fold(name: str) -> str:
    """Return a name without case, spaces and Unicode form, for comparison of spellings."""
    return "".join(unicodedata.normalize("NFKC", name).split()).casefold()
