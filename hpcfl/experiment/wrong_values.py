"""Lines about wrong keys and values: the key, its value and the allowed ones."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from hpcfl.errors import suggest

LONGEST = 200  # letters of a value


def explain(
    error: ValidationError, place: str, allowed: Callable[[], Iterable[str]]
) -> list[str]:
    """Return a line for each wrong key of a section.

    place: the section, "" for a whole file. allowed: returns the section's keys.
    """
    lines: dict[str, str] = {}
    for one in error.errors(include_url=False):
        first, *inner = one["loc"] or ("",)
        # pydantic's path also names members of unions
        positions = [part for part in inner if isinstance(part, int)]
        path = [str(part) for part in (place, first, *positions) if part != ""]
        key, text = ".".join(path), _describe(one["msg"])
        if one["type"] == "extra_forbidden":
            lines[key] = f"unknown key '{key}'{suggest(str(first), allowed())}"
        elif one["type"] == "missing":
            lines[key] = f"'{key}' is missing"
        elif key == place:  # about several of its keys
            lines[key] = f"{key}: {text}"
        elif key in lines:  # another member of a union
            lines[key] += f" or {text}"
        elif not any(known.startswith(f"{place}.{first}.") for known in lines):
            lines[key] = f"{key} = {shorten(one['input'])}: {text}"
    return list(lines.values())


def _describe(message: str) -> str:
    """Return the allowed values that a message of pydantic names."""
    return re.sub(r"^\w+ should", "must", message.removeprefix("Value error, "))


def shorten(value: Any) -> str:
    """Return the beginning of a value's representation."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
