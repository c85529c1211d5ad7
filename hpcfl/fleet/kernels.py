"""Gradients and predictions of L client models at once: the only module that differentiates.

Two kernels give the same numbers to rounding. ``SerialKernel`` is the oracle: one lane, an ordinary ``nn.Module``, ordinary
autograd. ``StackedKernel`` maps the same loss over stacked lanes with ``torch.func``.

The rule that picks one is fixed (see ``choose``), never a timing: which kernel runs changes the last bits.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.experiment.plugins import nearest
from hpcfl.fleet.graphs import Function
from hpcfl.fleet.replay import Replayed

Tensors = dict[str, Tensor]
RECORDINGS = 16  # losses of a run that are kept recorded; a closure made anew every round is a new loss


@dataclass
class Batch:
    """One mini-batch of ONE client: ``x`` [batch, *shape], ``y`` [batch] class numbers."""

    x: Tensor
    y: Tensor


class Lane(SimpleNamespace):
    """The variables of ONE client, as a loss or a prediction sees them."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the lane has no variable '{name}'{nearest(name, sorted(vars(self))) if vars(self) else ''}")


Loss = Callable[[nn.Module, Batch, Any], Tensor]
Predict = Callable[[nn.Module, Tensor, Any], Tensor]


class _Program(nn.Module):
    """A function of (model, …) as a module, so that the model's tensors can be swapped while the function runs."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]):
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(self.model, *arguments)


class SerialKernel:
    """One lane at a time through an ordinary module whose parameters are views of the lane's tensors."""

    widest = 1

    def __init__(self, module: nn.Module):
        self.module = module
        self._channels_last = convolves(module)

    def lay_out(self, tensors: Tensors) -> Tensors:
        """A lane's tensors ``[1, …]`` in the memory layout that suits them: convolutions like their weights channels-last."""
        if not self._channels_last:
            return tensors
        # A clone has channels-last strides for one input channel too, where `contiguous` would see nothing to do.
        return {name: tensor[0].clone(memory_format=torch.channels_last)[None] if tensor.dim() == 5 else tensor
                for name, tensor in tensors.items()}

    def _bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors``; return the parameters to differentiate, in ``trained``'s order."""
        parameters = dict(self.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.data = tensors[name][0]
            parameter.requires_grad_(name in trained)
        for name, _ in list(self.module.named_buffers()):  # a counter becomes a float here, as it is in a row
            owner, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(owner), leaf, tensors[name][0])
        return [parameters[name] for name in trained]

    def session(self, tensors: Tensors, trained: list[str], loss: Loss) -> Callable[..., tuple[Tensors, Tensor]]:
        """A gradient function bound to ``tensors`` [1, …], which later steps change in place."""
        leaves = self._bind(tensors, trained)
        _train_mode(self.module, trained)

        def gradient(lanes: slice | Tensor, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
            lane = Lane(**{name: value[0] for name, value in variables.items()})
            value = _one_number(loss(self.module, Batch(x[0], y[0]), lane))
            gradients = torch.autograd.grad(_differentiable(value), leaves, materialize_grads=True)
            return {name: g[None] for name, g in zip(trained, gradients, strict=True)}, value.detach()[None]

        return gradient

    @torch.no_grad()
    def predict(self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict) -> Tensor:
        """``function``'s output ``[1, batch, …]`` in evaluation mode."""
        self._bind(tensors, [])
        self.module.eval()
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        return function(self.module, x[0], lane)[None]


class StackedKernel:
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``."""

    def __init__(self, module: nn.Module, widest: int):
        self.module = module
        self.widest = widest
        self._recordings: dict[Hashable, Replayed] = {}

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` as they are."""
        return tensors

    def session(self, tensors: Tensors, trained: list[str], loss: Loss) -> Callable[..., tuple[Tensors, Tensor]]:
        """A gradient function over lanes of ``tensors`` [L, …], which later steps change in place."""
        program = _Program(self.module, lambda model, x, y, lane: _one_number(loss(model, Batch(x, y), Lane(**lane))))

        def single(named: Tensors, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
            value: Tensor = functional_call(
                program, {f"model.{name}": tensor for name, tensor in named.items()}, (x, y, variables))
            return value

        mapped = vmap(single, randomness="error")
        names = [*trained, *(name for name in tensors if name not in trained)]
        buffers = {name for name, _ in self.module.named_buffers()}
        _train_mode(self.module, trained)

        def compute(*given: Tensor, own: list[str]) -> tuple[Tensor, ...]:
            """Gradients and losses from the tensors of ``names``, x, y and the variables called ``own``."""
            named = dict(zip(names, given, strict=False))
            leaves = [named[name].detach().requires_grad_() for name in trained]
            x, y, *variables = given[len(names):]
            values = mapped(named | dict(zip(trained, leaves, strict=True)), x, y, dict(zip(own, variables, strict=True)))
            # A lane's loss depends on its own tensors alone, so the gradient of the sum holds every lane's own gradient.
            return (*torch.autograd.grad(_differentiable(values.sum()), leaves, materialize_grads=True), values.detach())

        def gradient(lanes: slice | Tensor, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
            given, own = [tensors[name][lanes] for name in names], sorted(variables)
            run: Function = partial(compute, own=own)
            if not buffers:  # batch norm changes its buffers on the way
                run = self._replayed((_identity(loss), len(trained), *names, *own), run, labels=len(names) + 1)
            *gradients, values = run(*given, x, y, *(variables[name] for name in own))
            if isinstance(lanes, Tensor):
                for name, tensor in zip(names, given, strict=True):
                    if name in buffers:
                        tensors[name].index_copy_(0, lanes, tensor)
            return dict(zip(trained, gradients, strict=True)), values

        return gradient

    def _replayed(self, key: Hashable, function: Function, labels: int | None = None) -> Replayed:
        """The recordings of a function that was asked for under this key before; those used longest ago give way."""
        known = self._recordings.pop(key, None)
        self._recordings[key] = known or Replayed(function, labels)  # the one used last at the end
        if len(self._recordings) > RECORDINGS:
            self._recordings.pop(next(iter(self._recordings)))
        return self._recordings[key]

    @torch.no_grad()
    def predict(self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict) -> Tensor:
        """``function``'s output ``[L, batch, …]`` in evaluation mode."""
        self.module.eval()
        program = _Program(self.module, lambda model, x, lane: function(model, x, Lane(**lane)))
        names, own = list(tensors), sorted(variables)

        def single(named: Tensors, x: Tensor, lane: Tensors) -> Tensor:
            output: Tensor = functional_call(
                program, {f"model.{name}": tensor for name, tensor in named.items()}, (x, lane))
            return output

        def compute(*given: Tensor) -> tuple[Tensor, ...]:
            named, (x, *values) = dict(zip(names, given, strict=False)), given[len(names):]
            return vmap(single)(named, x, dict(zip(own, values, strict=True))),

        given = (*tensors.values(), x, *(variables[name] for name in own))
        if x.is_cuda:  # blocks are large there: a graph of its own for each would only hold memory
            return compute(*given)[0]
        return self._replayed(("predict", _identity(function), *names, *own), compute)(*given)[0]


def _one_number(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim():
        got = f"has shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
        raise TypeError(f"the loss of a mini-batch {got}; expected a tensor with one number, such as the mean")
    return loss


def _differentiable(loss: Tensor) -> Tensor:
    if not loss.requires_grad:
        raise TypeError("the loss does not depend on the parameters that are trained; compute it from the model's outputs")
    return loss


def _identity(loss: Loss | Predict) -> Hashable:
    """The same for one method's loss in every round; a recording keeps it alive, so that no other takes its id."""
    return getattr(loss, "__func__", loss), id(getattr(loss, "__self__", None))


def _train_mode(module: nn.Module, trained: list[str]) -> None:
    """Training mode, except for modules whose parameters are all frozen: their batch norm stands still as well."""
    module.train()
    for name, part in module.named_modules():
        own = [f"{name}.{parameter}" for parameter, _ in part.named_parameters()] if name else trained
        if own and not any(parameter in trained for parameter in own):
            part.eval()


def at(model: nn.Module, row: Tensor, function: Callable[[nn.Module], Tensor]) -> Tensor:
    """``function(model)`` with the parameters of ``row`` [P] instead, in evaluation mode: another model inside a loss.

    For example ``at(model, lane.teacher, lambda teacher: teacher.features(batch.x))``. Its buffers are the model's.
    """
    named, start = {}, 0
    for name, parameter in model.named_parameters():
        named[f"model.{name}"] = row[start:start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        output: Tensor = functional_call(_Program(model, function), named, ())
        return output
    finally:
        for part, mode in modes.items():
            part.training = mode


def descend(start: Tensors, loss: Callable[[Tensors], Tensor], lr: float, steps: int, beat: Callable[[], None]) -> Tensors:
    """Plain gradient descent on free tensors instead of a model: ``steps`` steps from ``start``, which stays as it is.

    ``beat`` is called once a step.
    """
    current = {name: tensor.clone() for name, tensor in start.items()}
    for _ in range(steps):
        leaves = {name: tensor.requires_grad_() for name, tensor in current.items()}
        gradients = torch.autograd.grad(loss(leaves), list(leaves.values()))
        current = {name: (leaf - lr * gradient).detach() for (name, leaf), gradient
                   in zip(leaves.items(), gradients, strict=True)}
        beat()
    return current


def convolves(module: nn.Module) -> bool:
    """Whether a model has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def choose(module: nn.Module, device: torch.device, lanes: int | str) -> SerialKernel | StackedKernel:
    """The kernel for a model on a device.

    ``lanes = 1`` is serial. ``"auto"`` on a CPU stacks models without convolutions, whose batched matrix products give a
    lane the same bits whatever runs beside it and win by far for small dense models, and runs others serially, where
    channels-last convolutions are faster than any batched form; on a GPU all are stacked (``memory`` says how many fit).
    """
    if lanes == "auto":
        lanes = 1 if device.type == "cpu" and convolves(module) else 1 << 30
    return SerialKernel(module) if lanes == 1 else StackedKernel(module, int(lanes))


