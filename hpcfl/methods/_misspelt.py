"""Functions of a user's own method that look like hooks, but that no round calls."""

import difflib
import inspect
from types import FunctionType

from hpcfl.experiment import user_code

CLOSE = 0.8  # how much of a name must be a hook's, as difflib counts


def notes(method: type) -> list[str]:
    """A line for each public function of a user's own classes that is no hook and whose
    name is nearly that of one.

    Without it such a method runs silently as the one that it derives from.
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
    """The public functions that a class defines itself."""
    return {
        name: thing
        for name, thing in vars(owner).items()
        if inspect.isfunction(thing) and not name.startswith("_")
    }
