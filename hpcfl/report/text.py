"""Text that comes from files: a terminal shows what it says, and never does what it says."""

from rich.text import Text


def plain(text: object) -> str:
    r"""One line in which every invisible character is written out, ``\x1b`` for the one that
    begins a colour."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
                   for letter in str(text))


def literal(text: object) -> Text:
    """``plain`` for rich, which finds no markup and no emoji codes in it."""
    return Text(plain(text))
