"""What users' own methods may still call by the names of version 0.1.0."""

import inspect

from hpcfl.errors import UserError
from hpcfl.experiment import blame

OLD_NAMES = {
    "opened": "prepare",
    "known": "loss_variables",
    "fit": "local_train",
    "keep": "store_state",
    "reply": "upload",
    "greet": "send_to_newcomers",
    "inherit": "init_newcomers",
    "join": "train_newcomers",
}


def refuse_old_hooks(method: type) -> None:
    """Raise UserError where a class of a user's own has a hook by its old name.

    A function of such a name is a hook if its first argument is one of a hook's.
    """
    for owner in method.__mro__:
        for name in OLD_NAMES.keys() & vars(owner).keys():
            hook = vars(owner)[name]
            place = blame.definition_of(hook)
            if place is None or _first_argument(hook) not in ("fleet", "server"):
                continue
            raise UserError(
                f"{place}: the hook '{name}' of {owner.__name__} is called "
                f"'{OLD_NAMES[name]}' since version 0.2.0 (CHANGELOG.md)"
            )


def hint(error: BaseException) -> str:
    """The end of a line about an error: the new name of what was not found, or ""."""
    if isinstance(error, AttributeError):
        for old, new in OLD_NAMES.items():
            if f"attribute '{old}'" in str(error):
                return f"; since version 0.2.0 it is called '{new}' (CHANGELOG.md)"
    return ""


def _first_argument(function: object) -> str | None:
    """The name of a method's first argument after ``self``; None if it has none."""
    if not inspect.isfunction(function):
        return None
    return next(iter([*inspect.signature(function).parameters][1:]), None)
