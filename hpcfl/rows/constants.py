"""Constants of a model: frozen parameters, frozen statistics, constant buffers.

Constant buffers, such as position numbers and masks, are not changed by a forward pass.
Constants are not part of a row, and training does not change them. A model freezes a
parameter by ``requires_grad_(False)`` in its constructor. A layer with only frozen
parameters is in evaluation mode, so that its statistics are constant, too.

``hold`` registers frozen parameters as buffers, so that ``parameters()`` yields exactly
the contents of a row, for example in a loss. All models of all clients and ranks share
one set of values. The values follow from the configuration and from files that a user's
module reads.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hpcfl.errors import RunFailure

BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
NORMS = *BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d


@dataclass(frozen=True)
class Constants:
    """The constants of a module, stored as its attribute ``constants``.

    Attributes:
        names: names of the constants, including tied ones.
        order: names of all parameters in registration order, tied ones once.
        frozen: names of the constants that were parameters, including tied ones.
        own_buffers: values of the constant buffers outside norms, by name.
    """

    names: frozenset[str] = frozenset()
    order: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
    own_buffers: Mapping[str, Tensor] = field(default_factory=dict)


def find_constants(module: nn.Module) -> Constants:
    """Return the constants of a module."""
    held = getattr(module, "constants", None)
    return held if isinstance(held, Constants) else Constants()


def copy_frozen(
    module: nn.Module, is_adapted: bool = False, statistics: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return copies of a module's frozen parameters and constant buffers by name.

    Tied tensors are returned once.

    Args:
        module: model of one client.
        is_adapted: whether the model has an adapter, which freezes every norm without
            parameters.
        statistics: names of buffers outside norms that a forward pass changes.
    """
    values: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            values[name] = parameter.detach().clone()
    for name, layer in module.named_modules():
        if name and _has_constant_statistics(layer, is_adapted):
            for leaf, buffer in layer.named_buffers():
                values[f"{name}.{leaf}"] = buffer.detach().clone()
    for name, buffer in list_own_buffers(module):
        if name not in statistics:
            values[name] = buffer.detach().clone()
    return values


def _has_constant_statistics(layer: nn.Module, is_adapted: bool) -> bool:
    """Return whether the statistics of a layer are constants.

    Args:
        layer: layer of a model.
        is_adapted: as for ``copy_frozen``.
    """
    parameters = list(layer.parameters())
    if not parameters:
        return is_adapted and isinstance(layer, NORMS)
    return not any(parameter.requires_grad for parameter in parameters)


def list_own_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers by name that are not in a norm of torch; tied ones once."""
    of_norms = set()
    for part in module.modules():
        if isinstance(part, NORMS):
            of_norms |= set(map(id, part.buffers(recurse=False)))
    for name, buffer in module.named_buffers():
        if id(buffer) not in of_norms:
            yield name, buffer


def hold(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Turn a module's frozen tensors into constants with given values.

    The module is changed and returned.

    Args:
        module: model of one client.
        values: values by name, from ``copy_frozen``, possibly in another type. An empty
            mapping changes nothing.
    """
    if not values:
        return module
    own_buffers = {}
    for name, _ in list_own_buffers(module):
        if name in values:
            own_buffers[name] = values[name]
    order = tuple(name for name, _ in module.named_parameters())
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    tensors = {**parameters, **buffers}
    copies = {id(tensors[name]): value.clone() for name, value in values.items()}
    # Tied tensors have several names, but one copy.
    names = [name for name, tensor in tensors.items() if id(tensor) in copies]
    for name in names:
        copy = copies[id(tensors[name])]
        if name in buffers:
            buffers[name].data = copy
            continue
        owner, leaf = _find_owner(module, name)
        delattr(owner, leaf)
        owner.register_buffer(leaf, copy)
    module.constants = Constants(  # type: ignore[assignment]
        names=frozenset(names),
        order=order,
        frozen=frozenset(name for name in names if name in parameters),
        own_buffers=own_buffers,
    )
    return module


def hold_part(part: nn.Module, module: nn.Module) -> None:
    """Give a part of a module the module's constants, under the same names.

    Args:
        part: module that has some of the tensors of ``module``.
        module: module with constants.
    """
    held = find_constants(module)
    inside = part.state_dict().keys()
    if held.names & inside:
        part.constants = Constants(  # type: ignore[assignment]
            names=held.names & inside,
            order=tuple(name for name in held.order if name in inside),
            frozen=held.frozen & inside,
        )


def _find_owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the layer of a tensor, and the name of the tensor in this layer."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def refuse_changed(module: nn.Module) -> None:
    """Raise RunFailure if a forward pass has changed a constant buffer."""
    for name, value in find_constants(module).own_buffers.items():
        now = module.get_buffer(name)
        if not torch.equal(now.detach().cpu(), value):
            raise RunFailure(
                f"the model has changed its buffer '{name}', which is treated as constant because "
                "the first forward pass did not change it; change it in every forward pass in "
                "training mode, or never"
            )


def collect(module: nn.Module) -> dict[str, Tensor]:
    """Return the constants of a module by name; tied ones once."""
    names = find_constants(module).names
    return {name: one for name, one in module.named_buffers() if name in names}


def collect_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a module that differ between clients, by name."""
    names = find_constants(module).names
    return {name: one for name, one in module.named_buffers() if name not in names}


def list_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's trained and frozen parameters by name, in registration order."""
    parameters = dict(module.named_parameters())
    tensors = {**parameters, **dict(module.named_buffers())}
    for name in find_constants(module).order or parameters:
        yield name, tensors[name]


def count_bytes(module: nn.Module) -> int:
    """Return the number of bytes of a module's constants."""
    return sum(value.nbytes for value in collect(module).values())


def release(module: nn.Module) -> nn.Module:
    """Turn a module's constants back into frozen parameters and buffers.

    The module is changed and returned.
    """
    held = find_constants(module)
    tied_names = sorted(held.frozen - set(held.order))
    known: dict[int, Parameter] = {}  # tied tensors become one parameter
    # All parameters are registered again, to restore their order.
    for name in [*held.order, *tied_names]:
        owner, leaf = _find_owner(module, name)
        value = getattr(owner, leaf)
        if name in held.frozen:
            frozen = Parameter(value, requires_grad=False)
            value = known.setdefault(id(value), frozen)
        delattr(owner, leaf)
        owner.register_parameter(leaf, value)
    if held.names:
        del module.constants
    return module
