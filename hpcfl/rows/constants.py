"""Parameters that a model freezes, and the statistics of batch norm below them: they lie
in no row, and nothing ever moves them.

A model says so as everywhere in torch, by ``requires_grad_(False)`` when it is made; a
layer of which all is frozen is in evaluation mode, so that its statistics stay, too.
They are constants of an experiment: all models of all clients and ranks have one set of
values, which follows from the configuration and from what the user's module reads.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import Parameter

NORMS = nn.modules.batchnorm._NormBase  # batch norm, and instance norm that is like it


class WithConstants(nn.Module):
    """Joins the class of a model that has constants: they are none of its parameters
    and buffers.

    So ``parameters()`` is what a row holds, for everybody who asks, such as a loss, and
    ``buffers()`` what clients have of their own. ``state_dict`` and ``to`` have the
    constants as well.

    constants: their names, those of tied ones too.
    """

    constants: ClassVar[frozenset[str]] = frozenset()

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


def frozen(module: nn.Module, adapted: bool = False) -> dict[str, Tensor]:
    """Copies of the parameters that a module has frozen, by name, and of the buffers of
    layers of which all is frozen; tied parameters once.

    adapted: whether a norm without parameters is frozen wherever it lies, because all
        but an adapter is.
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
    return values


def hold(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """The same module: what it has frozen are constants from now on, with ``values``.

    values: by name, as ``frozen`` gives them, perhaps in another type; without any
        nothing changes.
    """
    if not values:
        return module
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in values.items():
        tensors[name].data = value.clone()
    tied = {
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    }
    plain = type(module)
    names = {"constants": frozenset(tied | values.keys())}
    module.__class__ = type(plain.__name__, (WithConstants, plain), names)
    return module


def of(module: nn.Module) -> dict[str, Tensor]:
    """The constants of a module by name; tied ones once."""
    if not isinstance(module, WithConstants):
        return {}
    everything = [
        *nn.Module.named_parameters(module),
        *nn.Module.named_buffers(module),
    ]
    return {name: value for name, value in everything if name in module.constants}


def size(module: nn.Module) -> int:
    """The bytes of a module's constants."""
    return sum(value.nbytes for value in of(module).values())


def whole(module: nn.Module) -> nn.Module:
    """The same module, whose constants are frozen parameters and buffers again as any
    other.
    """
    if isinstance(module, WithConstants):
        module.__class__ = type(module).__bases__[1]
    return module
