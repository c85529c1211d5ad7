"""Options that many methods share, such as ``ala``, in classes that replace the hooks
which do their work.

A class that derives from ``FedAvg`` has FedAvg's keys. Where a hook of its own replaces
the one that an option lives in, the option would do nothing, or half of what it says,
without any error. So each option names its hooks, ``Method.option_hooks``, and what the
classes do with them is read off their code.
"""

import inspect
from collections.abc import Collection
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment import blame
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import Method


def refuse_without_effect(method: Method, training: Training) -> None:
    """Raise UserError where an option is set that one of the method's hooks leaves out,
    or where the batch-norm statistics to be averaged are of a model that it lacks.

    What an option is by default is the method's own affair.
    """
    kind = type(method)
    if training.buffers == "average" and "model" not in kind.models:
        raise UserError(
            f"{_place(kind)}training.buffers = 'average' has no effect: {kind.__name__}."
            f"models = {kind.models} has no 'model', whose statistics are averaged; leave "
            "the key out, or have the model that is averaged trained as 'model'"
        )
    for option, hooks in kind.option_hooks.items():
        value = getattr(method, option)
        if value == kind.model_fields[option].default:
            continue
        for hook, parts in hooks.items():
            owner = leaving_out(kind, option, hook, parts)
            if owner is None:
                continue
            raise UserError(
                f"{_place(vars(owner)[hook])}method.{option} = {value!r} has no effect: "
                f"{owner.__name__}.{hook} replaces the hook that it needs; leave the key "
                f"out, or call super().{hook}(…) there, or write keeps = ('{option}',) in "
                f"{owner.__name__} if its hooks do what the key asks for"
            )


def leaving_out(
    kind: type[Method], option: str, hook: str, parts: Collection[str]
) -> type | None:
    """The class that leaves ``option`` out of its ``hook``, of ``kind`` and those that
    it derives from; None where none does.

    A class keeps the option where it says so, ``keeps``, where its hook calls all of the
    ``parts`` that the hook consists of, if there are any, or where it calls ``super()``'s
    and the next class keeps it.
    """
    for owner in kind.__mro__:
        if hook not in vars(owner):
            continue
        called = names_in(vars(owner)[hook])
        in_parts = parts and called.issuperset(parts)
        if in_parts or option in vars(owner).get("keeps", ()):
            return None
        if not called.issuperset(("super", hook)):
            return owner
    return None


def _place(thing: Any) -> str:
    """``file:line: `` of a user's class or function; "" for what is hpcfl's."""
    place = blame.definition_of(thing)
    return f"{place}: " if place else ""


def names_in(function: Any) -> set[str]:
    """The names of globals and attributes that a function's code reads."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return set(code.co_names) if code else set()
