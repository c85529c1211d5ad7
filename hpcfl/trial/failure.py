"""A function of the user's that failed in the trial, and how that is told."""

from collections.abc import Iterator
from contextlib import contextmanager

Diagnosis = tuple[str, BaseException | None]  # a line, and the exception behind it


class Failure(Exception):
    """A hook of the method or a function of a score failed: the text is its name, the
    ``__cause__`` why.
    """


@contextmanager
def trying(name: str) -> Iterator[None]:
    """Inside the block every exception becomes the Failure of the hook or function
    ``name``.
    """
    try:
        yield
    except Exception as error:
        raise Failure(name) from error


def placed(text: str, place: str | None) -> str:
    """The text behind the ``file:line`` that it is about, where that is known."""
    return f"{place}: {text}" if place else text
