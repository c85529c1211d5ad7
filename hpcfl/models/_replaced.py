"""Layers of torch that cannot run for many clients in one call, replaced by equal ones
that can, in a user's module as well.

A layer stays the same object, with its parameters, names and hooks: only its class is
another one, which inherits from torch's.
"""

from torch import nn

from hpcfl.models import _random

REPLACED: dict[type[nn.Module], type[nn.Module]] = {**_random.KEYED}


def replace_layers(module: nn.Module) -> nn.Module:
    """The same module, whose layers run side by side where they could not."""
    for layer in module.modules():
        # Not of subclasses: what these compute instead only they know.
        layer.__class__ = REPLACED.get(type(layer), type(layer))
    return module


def restore_layers(module: nn.Module) -> nn.Module:
    """The same module with torch's own layers again."""
    plain = {replaced: original for original, replaced in REPLACED.items()}
    for layer in module.modules():
        layer.__class__ = plain.get(type(layer), type(layer))
    return module
