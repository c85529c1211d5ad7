"""Conversion of a user's texts to file names."""

import re


def make_file_name(text: str) -> str:
    """Return the text; characters that some file systems refuse are replaced by "_"."""
    return re.sub(r"[^\w.+=-]+", "_", text)
