"""Text from files made safe to print, and formats that several commands share."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from hpcfl.files import output
from hpcfl.files.wording import list_first

WIDEST = 10_000  # letters; a width for rich beyond any line
NAMED = 3  # number of names that are listed in a note
MOST_SECONDS = 1e11  # seconds; longer times are not formatted as hours


def escape(text: object) -> str:
    r"""Return a text on one line, with escapes such as ``\x1b`` for unprintable letters."""
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


def shorten(text: object, most: int = 100) -> str:
    """Return a text on one line, cut after ``most`` letters."""
    letters = escape(text)
    return letters if len(letters) <= most else f"{letters[: most - 1]}…"


def literal(text: object) -> Text:
    """Return a text for rich without interpreting markup and emoji codes."""
    return Text(escape(text))


def make_console(elsewhere: int | None = None, **options: Any) -> Console:
    """Return a console of rich that prints to standard output.

    In a notebook the console prints plain text. By default rich would take a notebook
    for a terminal, or display HTML that cannot be redirected like standard output.

    Args:
        elsewhere: Letters per line if the output is not a terminal.
        options: Further arguments of rich's ``Console``.
    """
    if is_in_notebook():
        options["force_terminal"] = False
    options["quiet"] = output.is_quiet()
    console = Console(highlight=False, force_jupyter=False, **options)
    if elsewhere is not None and not console.is_terminal:
        console.width = elsewhere
    return console


def is_in_notebook() -> bool:
    """Return whether standard output appears below a notebook cell."""
    kernel = sys.modules.get("ipykernel.iostream")
    return kernel is not None and isinstance(sys.stdout, kernel.OutStream)


def format_duration(seconds: float) -> str:
    """Format seconds as ``1:02:03`` (hours, minutes, seconds), or ``2:03`` below an hour.

    Negative, very large and infinite values are formatted as seconds.
    """
    if not 0 <= seconds < MOST_SECONDS:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_clients(counts: Sequence[float]) -> str:
    """Format numbers of clients as ``20`` or ``9 to 10``; "" if one of them is NaN."""
    if not len(counts) or not np.isfinite(counts).all():
        return ""
    least, most = f"{min(counts):.4g}", f"{max(counts):.4g}"
    return least if least == most else f"{least} to {most}"


def warn_of_other_clients(clients: Mapping[str, str]) -> str:
    """Return a warning if numbers come from different clients, else "".

    Args:
        clients: Number of clients as text, from ``format_clients``, by the name of each
            number. Empty texts are skipped.
    """
    names: dict[str, list[str]] = {}
    for name, text in clients.items():
        if text:
            names.setdefault(text, []).append(name)
    if len(names) < 2:
        return ""
    parts = [
        f"{text} clients ({list_first(of_text, NAMED)})"
        for text, of_text in names.items()
    ]
    return f"these numbers cannot be compared, they come from {' and '.join(parts)}"
