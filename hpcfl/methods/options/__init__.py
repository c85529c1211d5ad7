"""Options that many methods can have, each by a key of ``[method]``.

``ala = true`` (``ala.py``) is a key of the methods that derive from ``ServerModel``, and
``aggregation = "class-wise"`` (``overlays/class_wise.py``) of those that derive from
``FedAvg``. The messages of the second are an overlay. An option's part in local training
lies in hooks of the base classes. A class that overrides such a hook may leave the option out, so it declares
in ``keeps`` the options that still work.
"""

from collections.abc import Mapping

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import Method

# By key: the hooks of the base classes in which the option does its work, or whose work
# it replaces.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "ala": ("start", "update"),
    "aggregation": (
        "send",
        "send_to_newcomers",
        "training_loss",
        "loss_variables",
        "local_train",
        "update",
        "aggregate",
    ),
}


def refuse_without_effect(method: Method, training: Training) -> None:
    """Raise UserError where an option is set that a hook of the method may leave out, or
    where statistics are averaged of a model that the method lacks.

    An option with its default value is the method's own affair.
    """
    kind = type(method)
    if training.buffers == "average" and "model" not in kind.models:
        raise UserError(
            f"{user_code.locate(kind)}training.buffers = 'average' has no effect: {kind.__name__}."
            f"models = {kind.models} has no 'model', whose statistics are averaged; leave "
            "the key out, or have the model that is averaged trained as 'model'"
        )
    for key in HOOKS:
        field = kind.model_fields.get(key)
        if field is None or getattr(method, key) == field.default:
            continue
        found = undeclared(kind, key)
        if found is None:
            continue
        owner, hook = found
        raise UserError(
            f"{user_code.locate(vars(owner)[hook])}method.{key} = {getattr(method, key)!r}: "
            f"{owner.__name__}.{hook} replaces a hook that the option needs; leave the key "
            f"out, or write keeps = ('{key}',) in {owner.__name__} if its hooks call "
            "super()'s or do that work"
        )


def undeclared(kind: type[Method], key: str) -> tuple[type, str] | None:
    """Return the class, of ``kind`` and its bases, that overrides a hook of an option
    without a declaration, and the hook; None if there is none.
    """
    for owner in kind.__mro__:
        if key in vars(owner).get("keeps", ()):
            return None
        for hook in HOOKS[key]:
            if hook in vars(owner):
                return owner, hook
    return None
