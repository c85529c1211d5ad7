"""Options that many methods share, each with a key in ``[method]``.

``ala = true`` (``ala.py``) is a key of all methods that derive from ``ServerModel``.
``aggregation = "class-wise"`` (``overlays/class_wise.py``) is a key of all methods that
derive from ``FedAvg``; an overlay changes its messages. Hooks of the base classes
implement an option's part in local training. A class that overrides such a hook may
break the option, so it lists the options that still work in ``keeps``.
"""

from collections.abc import Mapping

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import Method

# Hooks of the base classes that implement an option or that it replaces, by the
# option's key.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "ala": ("start", "update", "remember"),
    "aggregation": (
        "overlays",
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
    """Raise UserError for settings that the method's hooks may ignore.

    These are options with another value than their default, if the method overrides a
    hook that they need, and averaged batch-norm statistics, if the method has no model
    named "model".

    Args:
        method: The method with its keys.
        training: The section ``[training]``.
    """
    kind = type(method)
    if training.buffers == "average" and "model" not in kind.models:
        raise UserError(
            f"{user_code.locate(kind)}training.buffers = 'average' has no effect: {kind.__name__}."
            f"models = {kind.models} has no 'model', whose statistics are averaged; leave "
            "the key out, or train the averaged model as 'model'"
        )
    for key in HOOKS:
        field = kind.model_fields.get(key)
        if field is None or getattr(method, key) == field.default:
            continue
        found = find_undeclared(kind, key)
        if found is None:
            continue
        owner, hook = found
        raise UserError(
            f"{user_code.locate(vars(owner)[hook])}method.{key} = {getattr(method, key)!r}: "
            f"{owner.__name__}.{hook} replaces a hook that the option needs; leave the key "
            f"out, or write keeps = ('{key}',) in {owner.__name__} if its hooks call "
            "those of super() or implement the option"
        )


def find_undeclared(kind: type[Method], key: str) -> tuple[type, str] | None:
    """Return the first class that overrides a hook of an option without a declaration
    in ``keeps``, and the name of the hook; None if no class does.

    Args:
        kind: The class of the method; its bases are checked too.
        key: The key of the option.
    """
    for owner in kind.__mro__:
        if key in vars(owner).get("keeps", ()):
            return None
        for hook in HOOKS[key]:
            if hook in vars(owner):
                return owner, hook
    return None
