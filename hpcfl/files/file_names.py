"""Texts of a user as names of files."""

import re


def make_file_name(text: str) -> str:
    """Return the text with characters replaced that some file systems refuse."""
    return re.sub(r"[^\w.+=-]+", "_", text)
