"""Text that comes from files, made safe to print: control characters are shown, never
obeyed.
"""

from rich.text import Text

WIDEST = 10_000  # letters: a width for rich that no line reaches


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
