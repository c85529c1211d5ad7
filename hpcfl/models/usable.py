"""Checks of a user's module: parameters, layers and state that hpcfl cannot train."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.rows import randomness
from hpcfl.rows.constants import BATCH_NORMS, list_own_buffers

WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")
NUMBERS = (bool, int, float)


class Unusable(ValueError):
    """A module that hpcfl cannot train; the text names the part and the reason."""


def refuse_unusable(module: nn.Module) -> None:
    """Raise Unusable for the first parameter, layer or buffer that cannot be trained."""
    for name, parameter in module.named_parameters():
        if problem := _find_parameter_problem(parameter):
            raise Unusable(f"the parameter '{name}' {problem}")
    registered = set(_list_tensors(module))
    for name, part in module.named_modules():
        problem = _find_layer_problem(part) or _find_held_problem(part, registered)
        if problem:
            place = f"module '{name}'" if name else "whole module"
            raise Unusable(f"the {place} ({type(part).__name__}) {problem}")
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            raise Unusable(f"the buffer '{name}' has no values (device 'meta')")
    owners: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        owner = owners.setdefault(parameter.data_ptr(), name)
        if owner != name and parameter.numel():
            raise Unusable(
                f"the parameter '{name}' shares the memory of '{owner}' but is not tied to it; "
                "assign one nn.Parameter to both layers"
            )


def _find_layer_problem(part: nn.Module) -> str:
    kind = type(part)
    if kind.__name__ in WRAPPERS or isinstance(part, torch.jit.ScriptModule):
        return "wraps or compiles a model, but hpcfl does so itself; return the plain model"
    if ".quantized" in kind.__module__:
        return "is quantised, so it cannot be trained; use the layer of torch.nn"
    if isinstance(part, BATCH_NORMS) and part.running_mean is None:
        return (
            "keeps no statistics (track_running_stats = False), so that the prediction for a "
            "sample depends on the mini-batch; keep statistics, or use nn.GroupNorm"
        )
    return ""


def _find_held_problem(part: nn.Module, registered: set[Tensor]) -> str:
    """Return the mistake of tensors and layers that are plain attributes; "" without one.

    registered: the parameters and buffers of the whole model, as torch finds them.
    """
    for name, value in vars(part).items():
        if isinstance(value, Tensor) and not value.is_leaf:
            return (
                "has torch.nn.utils.weight_norm or another tensor computed from "
                "parameters, which cannot be copied; use "
                "torch.nn.utils.parametrizations.weight_norm"
            )
        if set(_list_tensors(value)) - registered:
            return (
                f"has layers in the plain {type(value).__name__} '{name}', so they are neither "
                "trained nor exported, and ranks may have other values; make it an "
                "nn.ModuleList or nn.ModuleDict, with requires_grad_(False) for frozen layers"
            )
    return ""


def _list_tensors(held: Any) -> Iterator[Tensor]:
    """Yield the parameters and buffers of layers in nested containers."""
    if isinstance(held, nn.Module):
        yield from held.parameters()
        yield from held.buffers()
    elif isinstance(held, nn.Parameter):
        yield held
    elif isinstance(held, dict):
        yield from _list_tensors([*held.values()])
    elif isinstance(held, list | tuple):
        for part in held:
            yield from _list_tensors(part)


def _find_parameter_problem(parameter: nn.Parameter) -> str:
    if is_lazy(parameter):
        return (
            "has no shape before the first forward pass (a lazy layer); give the layer its "
            "number of inputs"
        )
    if parameter.is_meta:
        return "has no values (device 'meta'); create the layer on the CPU"
    if parameter.layout != torch.strided:
        return "is sparse; parameters must be dense"
    expected = torch.get_default_dtype()
    if parameter.requires_grad and parameter.dtype != expected:
        return (
            f"is {parameter.dtype}, but trained parameters must be {expected}; "
            "convert it (.float()), or freeze it (requires_grad_(False))"
        )
    return ""


def find_statistics(module: nn.Module, x: Tensor, seed: int) -> set[str]:
    """Return the names of the buffers that a forward pass in training mode changes.

    Buffers of torch's norm layers are excluded, because they are always statistics. The
    forward passes change the module.

    Args:
        module: One client's module.
        x: A mini-batch of samples.
        seed: The seed of random numbers in the forward passes.

    Raises:
        Unusable: The forward pass changes state that hpcfl cannot store: parameters,
            replaced buffers, buffers with numbers that float32 does not represent,
            attributes that are not buffers, or state outside of the module. Or
            predictions are random.
    """
    generators = randomness.read_generators()
    buffers = dict(list_own_buffers(module))
    parameters = dict(module.named_parameters())
    copies = {}
    for name, tensor in {**dict(module.named_buffers()), **parameters}.items():
        copies[name] = tensor.detach().clone()
    before = [_predict(module, x), _train_once(module, x, seed)]
    attributes = dict(_list_attributes(module))
    _restore_buffers(module, copies)
    trained = _train_once(module, x, seed)
    # The second pass repeats the first one, so every difference is state.
    after = dict(_list_attributes(module))
    for name, value in attributes.items():
        if name in after and not _are_equal(value, after[name]):
            raise Unusable(
                f"the forward pass changes the attribute '{name}', which is not a buffer, so that "
                "all clients would share it; make it a float32 buffer (register_buffer) and "
                "change it in place"
            )
    for name, parameter in parameters.items():
        if not torch.equal(parameter, copies[name]):
            raise Unusable(
                f"the forward pass changes the parameter '{name}', which only a training step may "
                "change; compute the changed value without storing it"
            )
    now = dict(list_own_buffers(module))
    changed = set[str]()
    for name, buffer in buffers.items():
        if now.get(name) is not buffer:
            raise Unusable(
                f"the forward pass replaces the buffer '{name}', so that its value would be "
                "lost; change it in place, for example by copy_()"
            )
        if not torch.equal(buffer, copies[name]):
            is_whole = not (buffer.is_floating_point() or buffer.is_complex())
            is_exact = torch.equal(buffer, buffer.float().to(buffer.dtype))
            if buffer.dtype != torch.float32 and not (is_whole and is_exact):
                raise Unusable(
                    f"the buffer '{name}', which the forward pass changes, is "
                    f"{buffer.dtype}; it must be torch.float32, or integers below 2^24"
                )
            changed.add(name)
    _restore_buffers(module, copies)
    again = [_predict(module, x), trained]
    _refuse_random_scores(module, x, generators)
    _refuse_outside_state(before, again)
    return changed


def _refuse_outside_state(outputs: list[Any], again: list[Any]) -> None:
    """Raise Unusable unless repeated forward passes of an equal module agree."""
    if not all(map(_are_close, outputs, again)):
        raise Unusable(
            "the forward pass in training mode changes state outside of the module, such as a "
            "global variable, which all clients would share; make it a float32 buffer "
            "(register_buffer) and change it in place"
        )


def _refuse_random_scores(module: nn.Module, x: Tensor, generators: bytes) -> None:
    """Raise Unusable if two predictions for the same samples may differ.

    generators: the states of the global generators before all forward passes.
    """
    first, second = _predict(module, x), _predict(module, x)
    if randomness.read_generators() != generators:
        raise Unusable(
            "the forward pass draws random numbers in evaluation mode, or from numpy or random, "
            "so that results cannot be repeated; draw by torch, and only if self.training "
            "(functional.dropout needs training=self.training)"
        )
    if not _are_close(first, second):
        raise Unusable(
            "two forward passes in evaluation mode differ for the same samples; draw random "
            "numbers and change buffers only if self.training"
        )


def _train_once(module: nn.Module, x: Tensor, seed: int) -> Any:
    module.train()
    with torch.enable_grad(), randomness.seeded(seed, "statistics"):
        output = module(x)
    return output.detach() if isinstance(output, Tensor) else output


def _predict(module: nn.Module, x: Tensor) -> Any:
    module.eval()
    with torch.no_grad():
        return module(x)


def _restore_buffers(module: nn.Module, copies: dict[str, Tensor]) -> None:
    """Write the copies of changed buffers back; unchanged ones may be read-only."""
    for name, buffer in module.named_buffers():
        if name in copies and not torch.equal(buffer, copies[name]):
            buffer.copy_(copies[name])


def _are_close(output: Any, other: Any) -> bool:
    """Return whether two outputs are almost equal; True unless they are tensors."""
    if not isinstance(output, Tensor):
        return True
    return output.shape == other.shape and torch.allclose(output, other, equal_nan=True)


def _list_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield copies of the tensors and numbers in plain attributes of modules."""
    registries = vars(nn.Module()).keys() - {"training"}
    for path, part in module.named_modules():
        parameters = dict(part.named_parameters(recurse=False))
        for leaf, value in vars(part).items():
            computed = f"{leaf}_orig" in parameters  # recomputed by spectral_norm
            if leaf not in registries and not computed:
                yield f"{path}.{leaf}" if path else leaf, _copy_state(value)


def _copy_state(value: Any) -> Any:
    """Return copies of the tensors and numbers of a value or of nested containers.

    Other values are None.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return _copy_state([*value.values()])
    if isinstance(value, list | tuple):
        return [_copy_state(part) for part in value]
    return value if isinstance(value, NUMBERS) else None


def _are_equal(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return torch.equal(value, other)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_are_equal, value, other))
    return bool(value is other or (type(value) is type(other) and value == other))


def explain(error: Exception, name: str, x: Tensor) -> UserError:
    """Return the failure of a model called ``name`` on samples x as a UserError."""
    plugin = plugins.find("hpcfl.models", "model.name", name)
    where = user_code.locate(error, plugin)
    if isinstance(error, Unusable):
        return UserError(f"{where}model.name = '{name}': {error}")
    size = "×".join(map(str, x.shape))
    kind = "" if x.is_floating_point() else " token ids"
    return UserError(
        f"{where}model.name = '{name}' fails on {len(x)} samples, {size}{kind}"
        f": {user_code.describe_error(error)}"
    )
