"""Messages about errors in a user's code: file, line and error in one line."""

import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcfl.errors import Interrupted, RunFailure, UserError

PACKAGE = Path(__file__).parents[1]
STANDARD = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
MESSAGE_LETTERS = 300  # characters of an exception's message


@contextmanager
def locate_errors() -> Iterator[None]:
    """Convert exceptions of a user's code inside the block to UserErrors with file and
    line. Other exceptions pass unchanged.
    """
    try:
        yield
    except (UserError, RunFailure, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        if (place := find_line(error)) is None:
            raise
        raise UserError(f"{place}: {describe_error(error)}") from error


@contextmanager
def locate_definition(thing: object) -> Iterator[None]:
    """Prefix UserErrors inside the block with the file and line of a user's class or
    function.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{locate(thing)}{error}") from None


def is_own(file: str) -> bool:
    """Return whether a source file is a user's code, outside hpcfl, Python and
    installed packages.
    """
    path = Path(file)
    is_of_library = (
        path.is_relative_to(PACKAGE)
        or path.is_relative_to(STANDARD)
        or bool(INSTALLED & set(path.parts))
    )
    return path.suffix == ".py" and not is_of_library


def find_line(error: BaseException) -> str | None:
    """Return ``file:line`` of the innermost line of user code in an exception's
    traceback, or None.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shorten_path(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return f"{_shorten_path(frame.filename)}:{frame.lineno}"
    return None


def find_definition(thing: Any) -> str | None:
    """Return ``file:line`` of the definition of a user's class or function; None for
    other objects.
    """
    try:
        file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (TypeError, OSError):  # not defined in Python, or without a source file
        return None
    return f"{_shorten_path(file)}:{line}" if file and is_own(file) else None


def locate(*causes: object) -> str:
    """Return the prefix ``file:line: `` of a message, with the first known place.

    The place of an exception is the innermost line of user code in it, that of a user's
    class or function its definition. Without a known place the prefix is "".
    """
    for cause in causes:
        place = find_definition(cause)
        if isinstance(cause, BaseException):
            place = find_line(cause)
        if place:
            return f"{place}: "
    return ""


def describe_error(error: BaseException) -> str:
    """Return an exception's type and message in one line of bounded length."""
    words = " ".join(
        (error.msg if isinstance(error, SyntaxError) else str(error)).split()
    )
    words = words if len(words) <= MESSAGE_LETTERS else f"{words[:MESSAGE_LETTERS]} …"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _shorten_path(file: str) -> str:
    """Return a path relative to the current folder if it is inside, else the absolute
    path.
    """
    path, here = Path(os.path.abspath(file)), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
