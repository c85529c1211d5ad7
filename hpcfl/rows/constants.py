"""Constants of a model: frozen parameters, statistics of frozen norms, and buffers that
no forward pass changes.

Position numbers and masks are such buffers. Constants lie in no row, and training
leaves them unchanged. A model freezes a parameter by ``requires_grad_(False)`` in its
constructor. A layer with only frozen parameters is in evaluation mode, so that its
statistics stay fixed, too.

All models of all clients and ranks share one set of values. The values follow from the
configuration and from the files that a user's module reads.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.errors import RunFailure

NORMS = nn.modules.batchnorm._NormBase  # batch norm and instance norm


class WithConstants(nn.Module):
    """Mixin for the class of a model with constants; it hides them from parameters and
    buffers.

    ``parameters()`` then yields the contents of a row for every caller, such as a loss.
    ``buffers()`` yields the statistics that each client has of its own. ``state_dict``
    and ``to`` still include the constants.

    Attributes:
        constants: The names of the constants, with those of tied ones.
        own_buffers: The values of the constant buffers outside norms, by name.
    """

    constants: ClassVar[frozenset[str]] = frozenset()
    own_buffers: ClassVar[Mapping[str, Tensor]] = {}

    def named_parameters(
        self, prefix: str = "", *arguments: Any, **keywords: Any
    ) -> Iterator[tuple[str, Parameter]]:
        for name, parameter in super().named_parameters(prefix, *arguments, **keywords):
            if name.removeprefix(f"{prefix}.") not in self.constants:
                yield name, parameter

    def named_buffers(
        self, prefix: str = "", *arguments: Any, **keywords: Any
    ) -> Iterator[tuple[str, Tensor]]:
        for name, buffer in super().named_buffers(prefix, *arguments, **keywords):
            if name.removeprefix(f"{prefix}.") not in self.constants:
                yield name, buffer


def frozen(
    module: nn.Module, adapted: bool = False, statistics: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return copies of a module's frozen parameters and constant buffers by name; tied
    ones once.

    Args:
        adapted: True for a model with an adapter, in which every norm without
            parameters is frozen.
        statistics: The names of buffers outside norms that a forward pass changes.
    """
    values = {
        name: parameter.detach().clone()
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad
    }
    for name, part in module.named_modules():
        inside = list(part.parameters())
        still = bool(name and inside) and not any(one.requires_grad for one in inside)
        if still or (adapted and isinstance(part, NORMS) and not inside):
            for leaf, buffer in part.named_buffers():
                values[f"{name}.{leaf}"] = buffer.detach().clone()
    for name, buffer in own_buffers(module):
        if name not in statistics:
            values[name] = buffer.detach().clone()
    return values


def own_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers by name that lie in no norm of torch; tied ones once."""
    of_norms = {
        id(buffer)
        for part in module.modules()
        if isinstance(part, NORMS)
        for buffer in part.buffers(recurse=False)
    }
    for name, buffer in nn.Module.named_buffers(module):
        if id(buffer) not in of_norms:
            yield name, buffer


def hold(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Turn a module's frozen tensors into constants with ``values``, and return the
    module.

    values: by name, as ``frozen`` returns them, perhaps in another type. An empty
    mapping changes nothing.
    """
    if not values:
        return module
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in values.items():
        tensors[name].data = value.clone()
    held = {id(tensors[name]) for name in values}
    everything = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    names = {name for name, tensor in everything if id(tensor) in held}
    own = {name: values[name] for name, _ in own_buffers(module) if name in values}
    plain = type(module)
    attributes = {"constants": frozenset(names), "own_buffers": own}
    module.__class__ = type(plain.__name__, (WithConstants, plain), attributes)
    return module


def refuse_changed(module: nn.Module) -> None:
    """Raise RunFailure where a forward pass has changed a buffer that is a constant."""
    if not isinstance(module, WithConstants):
        return
    for name, value in module.own_buffers.items():
        now = module.get_buffer(name)
        if not torch.equal(now.detach().cpu(), value):
            raise RunFailure(
                f"the model has changed its buffer '{name}', which a first forward pass left as "
                "it was, so that it counts as constant; change it in every forward pass in "
                "training mode, or never"
            )


def collect(module: nn.Module) -> dict[str, Tensor]:
    """Return the constants of a module by name; tied ones once."""
    if not isinstance(module, WithConstants):
        return {}
    everything = [
        *nn.Module.named_parameters(module),
        *nn.Module.named_buffers(module),
    ]
    return {name: value for name, value in everything if name in module.constants}


def size(module: nn.Module) -> int:
    """Return the number of bytes of a module's constants."""
    return sum(value.nbytes for value in collect(module).values())


def whole(module: nn.Module) -> nn.Module:
    """Turn a module's constants back into ordinary frozen parameters and buffers, and
    return the module.
    """
    if isinstance(module, WithConstants):
        module.__class__ = type(module).__bases__[1]
    return module
