"""A failure in a user's own code as one line: which file and line failed, and what
Python or torch said.
"""

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
LONGEST = 300  # characters of what an exception says


@contextmanager
def blamed() -> Iterator[None]:
    """Turn an exception that went through a user's own code into a UserError with its
    file and line.

    Other exceptions pass as they are.
    """
    try:
        yield
    except (UserError, RunFailure, Interrupted):
        raise
    except Exception as error:
        if (place := line_of(error)) is None:
            raise
        raise UserError(f"{place}: {said(error)}") from error


def is_own(file: str) -> bool:
    """Whether a source file is a user's: neither of hpcfl nor of Python nor of an
    installed package.
    """
    path = Path(file)
    foreign = (
        path.is_relative_to(PACKAGE)
        or path.is_relative_to(STANDARD)
        or bool(INSTALLED & set(path.parts))
    )
    return path.suffix == ".py" and not foreign


def line_of(error: BaseException) -> str | None:
    """``file:line`` of the innermost line of a user's code in an exception's traceback;
    None without any.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno}"
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return next(
        (f"{_shown(file)}:{line}" for file, line in reversed(lines) if is_own(file)),
        None,
    )


def definition_of(thing: Any) -> str | None:
    """``file:line`` where a user's class or function begins; None for what is not a
    user's.
    """
    # A method with options is a class that no file defines, derived from one that does.
    kinds = inspect.getmro(thing) if inspect.isclass(thing) else [thing]
    for kind in kinds:
        try:
            file, (_, line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
        except (TypeError, OSError):  # not made of Python, or its source is gone
            continue
        if file and is_own(file):
            return f"{_shown(file)}:{line}"
    return None


def said(error: BaseException) -> str:
    """An exception's type and what it says, in one line of bounded length."""
    words = " ".join(
        (error.msg if isinstance(error, SyntaxError) else str(error)).split()
    )
    words = words if len(words) <= LONGEST else f"{words[:LONGEST]} …"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _shown(file: str) -> str:
    """A path from the current folder where it lies in there, else the whole path."""
    path, here = Path(os.path.abspath(file)), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
