"""Of how many clients numbers are, and a warning where they are not of the same."""

from collections.abc import Mapping, Sequence

import numpy as np


def clients_text(counts: Sequence[float]) -> str:
    """Numbers of clients as ``20`` or ``9 to 10``; "" where one is NaN, which was not
    recorded.
    """
    if not len(counts) or not np.isfinite(counts).all():
        return ""
    least, most = f"{min(counts):.4g}", f"{max(counts):.4g}"
    return least if least == most else f"{least} to {most}"


def mixed(clients: Mapping[str, str]) -> str:
    """A warning for numbers that are of different clients, "" if they are not.

    clients: ``clients_text`` of each number, by what the number is called; an empty one
        says nothing.
    """
    names: dict[str, list[str]] = {}
    for name, text in clients.items():
        if text:
            names.setdefault(text, []).append(name)
    if len(names) < 2:
        return ""
    parts = [f"of {text} clients ({few(of_text)})" for text, of_text in names.items()]
    return f"these numbers cannot be compared, they are {' and '.join(parts)}"


def few(names: Sequence[str]) -> str:
    """The first of several names, with a sign that there are more."""
    more = ", …" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
