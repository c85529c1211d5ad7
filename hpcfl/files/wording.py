"""Formatting of names from users' files: shortened for messages, normalised for
comparison.
"""

import unicodedata
from collections.abc import Sequence

LETTERS = 80  # largest number of characters of a name
MOST = 5  # largest number of names in a line


def shorten(name: str) -> str:
    """Return the beginning of a name, in printable characters."""
    printable = repr(name)[1:-1]
    return printable if len(printable) <= LETTERS else f"{printable[:LETTERS]}…"


def list_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names; "" for none."""
    return list_first([shorten(name) for name in names])


def list_first(phrases: Sequence[str], most: int = MOST) -> str:
    """Return the first phrases, and the number of further phrases; "" for none.

    Args:
        phrases: the phrases.
        most: number of phrases listed.
    """
    more = f" and {len(phrases) - most} more" if len(phrases) > most else ""
    return ", ".join(phrases[:most]) + more


def fold(name: str) -> str:
    """Return a name without case, spaces and Unicode variants, to compare spellings."""
    return "".join(unicodedata.normalize("NFKC", name).split()).casefold()
