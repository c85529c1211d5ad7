"""Text that comes from files, made safe to print: control characters are shown, never
obeyed.
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from hpcfl.files import output
from hpcfl.report import notebook

WIDEST = 10_000  # letters: a width for rich that no line reaches
LONGEST = 1e11  # seconds, some thousand years


def plain(text: object) -> str:
    r"""The text on one line, with every unprintable character written out, such as
    ``\x1b`` for escape.
    """
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape").decode("ascii")
        for letter in str(text)
    )


def literal(text: object) -> Text:
    """The same for rich, which then finds no markup and no emoji codes in it."""
    return Text(plain(text))


def stdout_console(**options: Any) -> Console:
    """A console of rich that prints to standard output.

    In a notebook it prints plain text: rich would take it for a terminal, or display
    HTML beside standard output, which nobody could redirect.
    """
    if notebook.is_shown():
        options["force_terminal"] = False
    options["quiet"] = output.is_quiet()
    return Console(highlight=False, force_jupyter=False, **options)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, ``1:02:03``, or ``2:03`` below an hour.

    Seconds that no run lasts, such as infinity, stay seconds.
    """
    if not 0 <= seconds < LONGEST:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
