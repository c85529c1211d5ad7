"""Options that many methods can have: wrappers, of which the methods know nothing.

An option is a key of ``[method]`` and a class that does the option's work over a base
class of methods: ``BlendedStart`` over ``ServerModel`` for ``ala = true``. A method
that derives from this base is wrapped by ``class FedProx(fedprox.FedProx,
BlendedStart)``. In Python's order of classes the wrapper then stands between the method
and the base. So the method's hooks reach the wrapper's where they call ``super()``'s, as
if the option were written in the base.

Where a class replaces such a hook without calling ``super()``'s, the option would do
nothing, or half of what it says, without any error. So what the classes do with the
wrapper's hooks is read off their code.
"""

import functools
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.sections import Training
from hpcfl.methods._anchored import Anchored
from hpcfl.methods._server_model import ServerModel
from hpcfl.methods.base import Method
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.options.ala import BlendedAnchor, BlendedStart, BlendingKey
from hpcfl.methods.options.class_wise import AggregationKey, ClassWiseAggregation


@dataclass(frozen=True)
class Option:
    """What methods derived from ``base`` can have.

    Attributes:
        key: of the section ``[method]``.
        on: the value of the key that asks for the option.
        base: the class whose hooks the option extends.
        section: the class that adds the key.
        wrapper: the class that does the work.
    """

    key: str
    on: Any
    base: type
    section: type[Any]
    wrapper: type


# A wrapper of a derived class comes before one of the class that it is derived from.
OPTIONS = (
    Option("aggregation", "class-wise", FedAvg, AggregationKey, ClassWiseAggregation),
    Option("ala", True, ServerModel, BlendingKey, BlendedStart),
    Option("ala", True, Anchored, BlendingKey, BlendedAnchor),
)

# The hooks in which options do their work, and the hooks that each of them calls. A
# class that replaces a hook may call these itself instead of ``super()``'s.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "server_state": (),
    "client_state": (),
    "send": (),
    "send_to_newcomers": (),
    "received": (),
    "start": ("received",),
    "objective": (),
    "loss_variables": (),
    "local_train": ("loss_variables",),
    "store_state": (),
    "upload": (),
    "update": ("start", "local_train", "store_state", "upload"),
    "aggregate": (),
}


def wrapped(method: type[Method], table: Mapping[str, Any]) -> type[Method]:
    """The class of a method with the keys of the options that it can have, wrapped by
    those that its section ``[method]``, ``table``, asks for.
    """
    bases: list[type] = []
    for option in OPTIONS:
        if not issubclass(method, option.base):
            continue
        fields = option.section.model_fields | method.model_fields
        asked = table.get(option.key, fields[option.key].default) == option.on
        bases.append(option.wrapper if asked else option.section)
    return _derived(method, *bases)


@functools.cache
def _derived(method: type[Method], *bases: type) -> type[Method]:
    """A class of the name and place of ``method``, which it derives from besides
    ``bases``.
    """
    if not bases:
        return method
    # FedAvg is a base class of its own wrapper.
    is_base = any(issubclass(base, method) for base in bases)
    parents = bases if is_base else (method, *bases)
    names = ("__module__", "__qualname__", "__doc__")
    namespace = {name: getattr(method, name) for name in names}
    derived: type[Method] = types.new_class(
        method.__name__, parents, exec_body=lambda body: body.update(namespace)
    )
    return derived


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
    for option in OPTIONS:
        if not issubclass(kind, option.base):
            continue
        value = getattr(method, option.key)
        if value == kind.model_fields[option.key].default:
            continue
        for hook in hooks_of(option):
            owner = leaving_out(kind, option, hook)
            if owner is None:
                continue
            raise UserError(
                f"{_place(vars(owner)[hook])}method.{option.key} = {value!r} has no effect: "
                f"{owner.__name__}.{hook} replaces the hook that it needs; leave the key "
                f"out, or call super().{hook}(…) there, or write keeps = ('{option.key}',) in "
                f"{owner.__name__} if its hooks do what the key asks for"
            )


def hooks_of(option: Option) -> list[str]:
    """The hooks that do the option's work: the wrapper's, and those that call them."""
    own = [
        hook
        for kind in option.wrapper.__mro__
        if not issubclass(option.base, kind)
        for hook in vars(kind)
    ]
    needed: list[str] = []
    for hook, called in HOOKS.items():
        if hook in own or set(called) & set(needed):
            needed.append(hook)
    return needed


def leaving_out(kind: type[Method], option: Option, hook: str) -> type | None:
    """The class that leaves ``option`` out of its ``hook``, of ``kind`` and those that
    it derives from above the option's base; None where none does.

    A class keeps the option where it says so, ``keeps``, where its hook calls all of the
    option's hooks that the hook consists of, if there are any, or where it calls
    ``super()``'s and the next class keeps it.
    """
    parts = set(HOOKS[hook]) & set(hooks_of(option))
    for owner in kind.__mro__:
        if issubclass(option.wrapper, owner):
            return None
        if hook not in vars(owner):
            continue
        called = names_in(vars(owner)[hook])
        in_parts = parts and called.issuperset(parts)
        if in_parts or option.key in vars(owner).get("keeps", ()):
            return None
        if not called.issuperset(("super", hook)):
            return owner
    return None


def _place(thing: Any) -> str:
    """``file:line: `` of a user's class or function; "" for what is hpcfl's."""
    place = user_code.find_definition(thing)
    return f"{place}: " if place else ""


def names_in(function: Any) -> set[str]:
    """The names of globals and attributes that a function's code reads."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return set(code.co_names) if code else set()
