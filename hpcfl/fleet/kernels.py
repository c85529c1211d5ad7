"""Gradients and predictions of L client models at once: the only module that differentiates.

Two kernels give the same numbers to rounding. ``SerialKernel`` is the oracle: one lane, an ordinary
``nn.Module``, ordinary autograd. ``StackedKernel`` maps the same loss over stacked lanes with ``torch.func``.

The rule that picks one is fixed (see ``choose``), never a timing: which kernel runs changes the last bits.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.experiment.plugins import nearest
from hpcfl.fleet.graphs import Function
from hpcfl.fleet.replay import Replayed

Tensors = dict[str, Tensor]
Lanes = slice | Tensor  # neighbouring lanes, or their indices [a]
RECORDINGS = 16  # losses of a run that are kept recorded; a closure made anew every round is a new loss


@dataclass
class Batch:
    """One mini-batch of ONE client: ``x`` [batch, *shape], ``y`` [batch] class numbers."""

    x: Tensor
    y: Tensor


class Lane(SimpleNamespace):
    """The variables of ONE client, as a loss or a prediction sees them."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError("the lane has no variable "
                             f"'{name}'{nearest(name, sorted(vars(self))) if vars(self) else ''}")


Loss = Callable[[nn.Module, Batch, Any], Tensor]
Predict = Callable[[nn.Module, Tensor, Any], Tensor]


class _Program(nn.Module):
    """A function of (model, …) as a module, so that the model's tensors can be swapped while
    the function runs."""

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

    def check(self) -> None:
        """Nothing is recorded, so nothing can be wrong."""

    def lay_out(self, tensors: Tensors) -> Tensors:
        """A lane's tensors ``[1, …]`` in the memory layout that suits them: convolutions like their
        weights channels-last."""
        if not self._channels_last:
            return tensors
        # A clone has channels-last strides for one input channel too, where `contiguous` would
        # see nothing to do.
        return {name: tensor[0].clone(memory_format=torch.channels_last)[None]
                if tensor.dim() == 5 else tensor
                for name, tensor in tensors.items()}

    def _bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors``; return the parameters to differentiate, in
        ``trained``'s order."""
        parameters = dict(self.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.data = tensors[name][0]
            parameter.requires_grad_(name in trained)
        for name, _ in list(self.module.named_buffers()):  # a counter becomes a float here, as it is in a row
            owner, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(owner), leaf, tensors[name][0])
        return [parameters[name] for name in trained]

    def session(self, tensors: Tensors, trained: list[str], loss: Loss) -> "SerialSession":
        """The gradients of ``loss`` at ``tensors`` [1, …], which later steps change in place."""
        leaves = self._bind(tensors, trained)
        _train_mode(self.module, trained)
        return SerialSession(self.module, loss, dict(zip(trained, leaves, strict=True)))

    @torch.no_grad()
    def predict(self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict) -> Tensor:
        """``function``'s output ``[1, batch, …]`` in evaluation mode."""
        self._bind(tensors, [])
        self.module.eval()
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        return function(self.module, x[0], lane)[None]


@dataclass(frozen=True)
class SerialSession:
    """Gradients of one lane's loss at the module's parameters called ``leaves``."""

    module: nn.Module
    loss: Loss
    leaves: Tensors

    def __call__(self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
        """By name ``[1, …]``, and the loss [1], on the mini-batch ``x`` [1, size, …], ``y`` [1, size]."""
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        value = _one_number(self.loss(self.module, Batch(x[0], y[0]), lane))
        leaves = list(self.leaves.values())
        gradients = torch.autograd.grad(_differentiable(value), leaves, materialize_grads=True)
        return {name: g[None] for name, g in zip(self.leaves, gradients, strict=True)}, value.detach()[None]


class StackedKernel:
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    replay: whether a step that ran often is recorded, and the recording run instead.
    """

    def __init__(self, module: nn.Module, widest: int, replay: bool = True):
        self.module = module
        self.widest = widest
        self._replay = replay
        self._recordings: dict[Hashable, Replayed] = {}

    def narrow(self, lanes: int) -> None:
        """At most so many lanes from now on: the GPU's memory did not hold twice as many."""
        print(f"hpcfl: the GPU's memory does not hold {2 * lanes} lanes or more; {lanes} from now on, which "
              f"may change the last bits (with runtime.lanes = {lanes} from the beginning)", file=sys.stderr)
        self.widest = lanes
        self._recordings.clear()  # and their graphs, which hold memory
        torch.cuda.empty_cache()

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` as they are."""
        return tensors

    def session(self, tensors: Tensors, trained: list[str], loss: Loss) -> "StackedSession":
        """The gradients of ``loss`` over lanes of ``tensors`` [L, …], which later steps change in place."""
        _train_mode(self.module, trained)
        return StackedSession(self, tensors, trained, loss)

    def check(self) -> None:
        """Raises RunFailure if a recording turned out to be wrong on a GPU since the last call."""
        for recording in self._recordings.values():
            recording.check()

    def replayed(self, key: Hashable, function: Function, what: str, labels: int | None = None,
                 moved: Sequence[int] = ()) -> Function:
        """A function that was asked for under this key before, with its recordings; those used longest ago
        give way.

        what: names the function where a recording turns out to be wrong. labels, moved: see Replayed.
        """
        if not self._replay:
            return function
        # The one used last is at the end.
        known = (self._recordings.pop(key) if key in self._recordings
                 else Replayed(function, what, labels, moved))
        self._recordings[key] = known
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
        key = ("predict", _identity(function), *names, *own)
        return self.replayed(key, compute, f"the prediction {_named(function)}")(*given)[0]


@dataclass(frozen=True)
class StackedLoss:
    """A loss of lanes as a function of tensors alone: parameters ``names``, x, y and variables ``own``."""

    module: nn.Module
    loss: Loss
    names: list[str]  # of parameters and buffers, the ``trained`` ones first
    trained: int
    own: list[str]

    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Of the trained ones, ``[a, …]`` each, and last the losses [a]."""
        tensors, (x, y, *variables) = list(given[:len(self.names)]), given[len(self.names):]
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[:self.trained]]
        named = dict(zip(self.names, leaves + tensors[self.trained:], strict=True))
        lanes = dict(zip(self.own, variables, strict=True))
        losses = vmap(self.of_one, randomness="error")(named, x, y, lanes)
        # A lane's loss depends on its own tensors alone, so the gradient of the sum holds every lane's own.
        total = _differentiable(losses.sum())
        return (*torch.autograd.grad(total, leaves, materialize_grads=True), losses.detach())

    def of_one(self, named: Tensors, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """The loss of ONE client, on a mini-batch ``x`` [size, …], ``y`` [size]."""
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        loss: Tensor = functional_call(_Program(self.module, self._of_model), swapped, (x, y, variables))
        return loss

    def _of_model(self, model: nn.Module, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        return _one_number(self.loss(model, Batch(x, y), Lane(**variables)))


class StackedSession:
    """Gradients of the lanes' losses at their ``tensors`` [L, …]; each call moves the buffers among them."""

    def __init__(self, kernel: StackedKernel, tensors: Tensors, trained: list[str], loss: Loss):
        self._kernel, self._tensors, self._trained, self._loss = kernel, tensors, trained, loss
        self._names = [*trained, *(name for name in tensors if name not in trained)]
        self._buffers = {name for name, _ in kernel.module.named_buffers()}

    def __call__(self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
        """By name ``[a, …]``, and the losses [a], on mini-batches ``x`` [a, size, …], ``y`` [a, size].

        On a GPU the gradients are good until the next call.
        """
        names, own = self._names, sorted(variables)
        given = [self._tensors[name][lanes] for name in names]
        run: Function = StackedLoss(self._kernel.module, self._loss, names, len(self._trained), own).gradients
        if x.is_cuda or not self._buffers:  # batch norm changes its buffers on the way, which graphs know
            key = (_identity(self._loss), len(self._trained), *names, *own)
            moved = [position for position, name in enumerate(names) if name in self._buffers]
            run = self._kernel.replayed(key, run, f"the loss {_named(self._loss)}", len(names) + 1, moved)
        *gradients, losses = run(*given, x, y, *(variables[name] for name in own))
        if x.is_cuda:  # the next call overwrites it
            losses = losses.clone()
        if isinstance(lanes, Tensor):
            for name, tensor in zip(names, given, strict=True):
                if name in self._buffers:
                    self._tensors[name].index_copy_(0, lanes, tensor)
        return dict(zip(self._trained, gradients, strict=True)), losses


def _one_number(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim():
        got = f"has shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
        raise TypeError(f"the loss of a mini-batch {got}; expected a tensor with one number, "
                        "such as the mean")
    return loss


def _differentiable(loss: Tensor) -> Tensor:
    if not loss.requires_grad:
        raise TypeError("the loss does not depend on the parameters that are trained; compute it from the "
                        "model's outputs")
    return loss


def _identity(loss: Loss | Predict) -> Hashable:
    """The same for one method's loss in every round; a recording keeps it alive, so that no other
    takes its id."""
    return getattr(loss, "__func__", loss), id(getattr(loss, "__self__", None))


def _named(function: Loss | Predict) -> str:
    """How a function is called where a user should find it, with the method it belongs to."""
    name = getattr(function, "__qualname__", repr(function))
    owner = getattr(function, "__self__", None)
    method = getattr(owner, "name", None)
    return f"'{name}' of the method '{method}'" if method else f"'{name}'"


def _train_mode(module: nn.Module, trained: list[str]) -> None:
    """Training mode, except for modules whose parameters are all frozen: their batch norm stands
    still as well."""
    module.train()
    for name, part in module.named_modules():
        own = [f"{name}.{parameter}" for parameter, _ in part.named_parameters()] if name else trained
        if own and not any(parameter in trained for parameter in own):
            part.eval()


def at(model: nn.Module, row: Tensor, function: Callable[[nn.Module], Tensor],
       buffers: Tensor | None = None) -> Tensor:
    """``function(model)`` with the parameters of ``row`` [P] instead, in evaluation mode: another
    model inside a loss.

    For example ``at(model, lane.teacher, lambda teacher: teacher.features(batch.x))``.

    buffers: its batch-norm statistics [B], a row of ``fleet.buffers(NAME)``; without them those of ``model``.
    """
    named = _from_row(model.named_parameters(), row)
    if buffers is not None:
        named |= _from_row(model.named_buffers(), buffers)
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        result: Tensor = functional_call(_Program(model, function), swapped, ())
        return result
    finally:
        for part, mode in modes.items():
            part.training = mode


def _from_row(tensors: Iterable[tuple[str, Tensor]], row: Tensor) -> Tensors:
    """Views of a row in the order and shapes of named tensors. Raises ValueError for another length."""
    like = dict(tensors)
    sizes = [tensor.numel() for tensor in like.values()]
    if sum(sizes) != len(row):
        raise ValueError(f"a row of a model has {len(row)} numbers; expected {sum(sizes)}")
    return {name: part.view(like[name].shape) for name, part in zip(like, row.split(sizes), strict=True)}


def descend(start: Tensors, loss: Callable[[Tensors], Tensor], lr: float, steps: int,
            beat: Callable[[], None]) -> Tensors:
    """Plain gradient descent on free tensors instead of a model: ``steps`` steps from ``start``,
    which stays as it is.

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


def choose(module: nn.Module, device: torch.device, lanes: int | str,
           replay: bool = True) -> SerialKernel | StackedKernel:
    """The kernel for a model on a device.

    ``lanes = 1`` is serial. ``"auto"`` on a CPU stacks models without convolutions, whose batched matrix
    products give a lane the same bits whatever runs beside it and win by far for small dense models, and
    runs others serially, where channels-last convolutions are faster than any batched form; on a GPU all are
    stacked (``memory`` says how many fit).
    replay: see StackedKernel; a serial kernel records nothing.
    """
    if lanes == "auto":
        lanes = 1 if device.type == "cpu" and convolves(module) else 1 << 30
    return SerialKernel(module) if lanes == 1 else StackedKernel(module, int(lanes), replay)


