"""Warnings for functions of a user's own method with a misspelt hook name."""

import difflib
import inspect
from types import FunctionType

from hpcfl.experiment import user_code

CLOSE = 0.8  # smallest similarity to a hook's name, by difflib


def notes(method: type) -> list[str]:
    """Return a line for each public function of a user's classes with nearly the name
    of a hook.

    Without this warning such a method silently runs like its base class.
    """
    hooks = {
        name
        for owner in method.__mro__
        if owner.__module__.startswith("hpcfl.methods.")
        for name in _functions(owner)
    }
    lines = []
    for owner in method.__mro__:
        for name, function in _functions(owner).items():
            if name in hooks:
                continue
            meant = difflib.get_close_matches(name, hooks, n=1, cutoff=CLOSE)
            place = user_code.find_definition(function)
            if meant and place:
                lines.append(
                    f"{place}: '{name}' is no hook, and no round calls it; did you mean "
                    f"'{meant[0]}'?"
                )
    return lines


def _functions(owner: type) -> dict[str, FunctionType]:
    """Return the public functions that a class itself defines."""
    return {
        name: thing
        for name, thing in vars(owner).items()
        if inspect.isfunction(thing) and not name.startswith("_")
    }
