"""Error messages for wrong keys and values, made from pydantic's errors."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from hpcfl.errors import suggest

VALUE_LETTERS = 200  # letters of a value


def explain(
    error: ValidationError, place: str, allowed: Callable[[], Iterable[str]]
) -> list[str]:
    """Return a line for each wrong key of a section.

    Args:
        error: The mistakes that pydantic found.
        place: The section, "" for the whole file.
        allowed: Function that returns the section's valid keys.
    """
    lines: dict[str, str] = {}
    for one in error.errors(include_url=False):
        first, *inner = one["loc"] or ("",)
        # pydantic's path also contains the names of a union's members.
        positions = [part for part in inner if isinstance(part, int)]
        path = [str(part) for part in (place, first, *positions) if part != ""]
        key, text = ".".join(path), _describe(one["type"], one["msg"])
        if one["type"] == "extra_forbidden":
            lines[key] = f"unknown key '{key}'{suggest(str(first), allowed())}"
        elif one["type"] == "missing":
            lines[key] = f"'{key}' is missing"
        elif key == place:  # a conflict between several keys
            lines[key] = f"{key}: {text}"
        elif key in lines:  # another member of a union
            lines[key] += f" or {text}"
        elif not any(known.startswith(f"{place}.{first}.") for known in lines):
            lines[key] = f"{key} = {shorten(one['input'])}: {text}"
    return list(lines.values())


def _describe(kind: str, message: str) -> str:
    """Return pydantic's message as the part of a sentence after the value.

    Args:
        kind: pydantic's name of the mistake.
        message: pydantic's message.
    """
    if kind == "bool_type":
        return "must be true or false"
    if kind == "sequence_str" or message.endswith(" an instance of Sequence"):
        return "must be a list"
    return re.sub(r"^\w+ should", "must", message.removeprefix("Value error, "))


def shorten(value: Any) -> str:
    """Return a value's representation, cut after VALUE_LETTERS characters."""
    text = repr(value)
    return text if len(text) <= VALUE_LETTERS else f"{text[:VALUE_LETTERS]}…"
