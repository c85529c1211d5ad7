"""Gradients and predictions of L client models at once: the only module that differentiates.

Two kernels give the same numbers up to rounding. ``SerialKernel`` is the reference: one lane, an ordinary
``nn.Module``, ordinary autograd. ``StackedKernel`` maps the same loss over stacked lanes with ``torch.func``.

``choose`` picks one by a fixed rule, never by a timing, because the kernels differ in the last bits.
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
RECORDINGS = 16  # losses and predictions that stay recorded; a closure made anew in every round is a new one


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


Loss = Callable[[nn.Module, Batch, Any], Tensor]  # of (model, batch, lane): one number
Predict = Callable[[nn.Module, Tensor, Any], Tensor]  # of (model, x, lane), in evaluation mode: [batch, …]


class _Program(nn.Module):
    """A function of (model, …) as a module, in which ``functional_call`` can swap the model's tensors."""

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
        """A lane's tensors ``[1, …]``, the weights of convolutions channels-last, which are faster so."""
        if not self._channels_last:
            return tensors
        # For one input channel `contiguous` would see nothing to do and leave other strides than a clone.
        return {name: tensor[0].clone(memory_format=torch.channels_last)[None]
                if tensor.dim() == 5 else tensor
                for name, tensor in tensors.items()}

    def _bind(self, tensors: Tensors, trained: list[str]) -> list[Tensor]:
        """Point the module at lane 0 of ``tensors``; returns the parameters ``trained``, in that order.

        What ``tensors`` lacks, such as a body that has run already, stays as it is.
        """
        parameters = dict(self.module.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trained)
            if name in tensors:
                parameter.data = tensors[name][0]
        for name, _ in list(self.module.named_buffers()):  # a counter becomes a float here, as it is in a row
            owner, _, leaf = name.rpartition(".")
            if name in tensors:
                setattr(self.module.get_submodule(owner), leaf, tensors[name][0])
        return [parameters[name] for name in trained]

    def session(self, tensors: Tensors, trained: list[str], loss: Loss) -> "SerialSession":
        """The gradients of ``loss`` as a function of mini-batches, at ``tensors`` [1, …].

        Steps change ``tensors`` in place; gradients are taken at what they hold at the time of the call.

        trained: the names of the parameters to differentiate; the others are frozen.
        """
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
    """Gradients of one lane's loss with respect to ``leaves``, parameters of the module by name."""

    module: nn.Module
    loss: Loss
    leaves: Tensors

    def __call__(self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
        """The gradients by name ``[1, …]``, and the loss [1], on a mini-batch of the one lane.

        x: ``[1, size, …]``. y: [1, size]. variables: ``[1, …]`` by name.
        Raises TypeError where the loss is not one number or does not depend on ``leaves``.
        """
        lane = Lane(**{name: value[0] for name, value in variables.items()})
        value = _one_number(self.loss(self.module, Batch(x[0], y[0]), lane))
        leaves = list(self.leaves.values())
        gradients = torch.autograd.grad(_differentiable(value), leaves, materialize_grads=True)
        return {name: g[None] for name, g in zip(self.leaves, gradients, strict=True)}, value.detach()[None]


class StackedKernel:
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    widest: the most lanes in one call.
    replay: whether a step or a prediction that ran often is recorded and the recording run instead.
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
        """The gradients of ``loss`` as a function of mini-batches, at ``tensors`` [L, …].

        Steps change ``tensors`` in place; gradients are taken at what they hold at the time of the call.

        trained: the names of the parameters to differentiate; the others are frozen.
        """
        _train_mode(self.module, trained)
        return StackedSession(self, tensors, trained, loss)

    def check(self) -> None:
        """Raise RunFailure if a recording turned out to be wrong on a GPU since the last call."""
        for recording in self._recordings.values():
            recording.check()

    def replayed(self, key: Hashable, function: Function, what: str, labels: int | None = None,
                 moved: Sequence[int] = ()) -> Function:
        """``function`` with the recordings that were made under ``key``; those used longest ago give way.

        what, labels, moved: as for ``Replayed``.
        """
        if not self._replay:
            return function
        recording = (self._recordings.pop(key) if key in self._recordings
                     else Replayed(function, what, labels, moved))
        self._recordings[key] = recording  # at the end, where the one used last is
        if len(self._recordings) > RECORDINGS:
            self._recordings.pop(next(iter(self._recordings)))
        return recording

    @torch.no_grad()
    def predict(self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict) -> Tensor:
        """``function``'s output ``[L, batch, …]`` in evaluation mode."""
        self.module.eval()
        program = _Program(self.module, lambda model, x, lane: function(model, x, Lane(**lane)))
        names, variable_names = list(tensors), sorted(variables)

        def of_one(named: Tensors, x: Tensor, lane: Tensors) -> Tensor:
            output: Tensor = functional_call(
                program, {f"model.{name}": tensor for name, tensor in named.items()}, (x, lane))
            return output

        def compute(*given: Tensor) -> tuple[Tensor, ...]:
            named, (x, *values) = dict(zip(names, given, strict=False)), given[len(names):]
            return vmap(of_one)(named, x, dict(zip(variable_names, values, strict=True))),

        given = (*tensors.values(), x, *(variables[name] for name in variable_names))
        if x.is_cuda:  # blocks are large there: a graph of its own for each would only hold memory
            return compute(*given)[0]
        key = ("predict", identity(function), *names, *variable_names)
        return self.replayed(key, compute, f"the prediction {_named(function)}")(*given)[0]


@dataclass(frozen=True)
class StackedLoss:
    """The losses of lanes as a function of tensors alone, which can be recorded.

    names: of the parameters and buffers, of which the first ``trained`` are differentiated.
    variable_names: of the variables of the lanes.
    """

    module: nn.Module
    loss: Loss
    names: list[str]
    trained: int
    variable_names: list[str]

    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the trained parameters, ``[a, …]`` each, and last the losses [a].

        given: ``[a, …]`` each: the parameters and buffers, x, y and the variables.
        """
        tensors, (x, y, *variables) = list(given[:len(self.names)]), given[len(self.names):]
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[:self.trained]]
        named = dict(zip(self.names, leaves + tensors[self.trained:], strict=True))
        lanes = dict(zip(self.variable_names, variables, strict=True))
        losses = vmap(self.of_one, randomness="error")(named, x, y, lanes)
        # A lane's loss depends on its own tensors alone, so the gradient of the sum holds every lane's own.
        total = _differentiable(losses.sum())
        return (*torch.autograd.grad(total, leaves, materialize_grads=True), losses.detach())

    def of_one(self, named: Tensors, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """The loss of ONE client with tensors ``named``, on a mini-batch ``x`` [size, …], ``y`` [size]."""
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        loss: Tensor = functional_call(_Program(self.module, self._of_model), swapped, (x, y, variables))
        return loss

    def _of_model(self, model: nn.Module, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        return _one_number(self.loss(model, Batch(x, y), Lane(**variables)))


class StackedSession:
    """Gradients of the lanes' losses at ``tensors`` [L, …]; each call moves the buffers among these."""

    def __init__(self, kernel: StackedKernel, tensors: Tensors, trained: list[str], loss: Loss):
        self._kernel, self._tensors, self._trained, self._loss = kernel, tensors, trained, loss
        self._names = [*trained, *(name for name in tensors if name not in trained)]
        self._buffers = {name for name, _ in kernel.module.named_buffers()} & tensors.keys()

    def __call__(self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
        """The gradients by name ``[a, …]``, and the losses [a], on mini-batches of the selected ``lanes``.

        On a GPU the gradients are good until the next call.

        x: ``[a, size, …]``. y: [a, size]. variables: ``[a, …]`` by name.
        Raises TypeError where a loss is not one number or does not depend on what is trained.
        """
        names, variable_names = self._names, sorted(variables)
        given = [self._tensors[name][lanes] for name in names]
        run: Function = StackedLoss(self._kernel.module, self._loss, names, len(self._trained),
                                    variable_names).gradients
        if x.is_cuda or not self._buffers:  # batch norm writes to its buffers, which only graphs can repeat
            key = (identity(self._loss), len(self._trained), *names, *variable_names)
            moved = [position for position, name in enumerate(names) if name in self._buffers]
            run = self._kernel.replayed(key, run, f"the loss {_named(self._loss)}", len(names) + 1, moved)
        *gradients, losses = run(*given, x, y, *(variables[name] for name in variable_names))
        if x.is_cuda:  # the next call overwrites them
            losses = losses.clone()
        if isinstance(lanes, Tensor):  # indices gave copies; a slice gave views, whose buffers moved in place
            for name, tensor in zip(names, given, strict=True):
                if name in self._buffers:
                    self._tensors[name].index_copy_(0, lanes, tensor)
        return dict(zip(self._trained, gradients, strict=True)), losses


def _one_number(loss: Tensor) -> Tensor:
    """The loss itself. Raises TypeError if it is not a tensor with one number."""
    if not isinstance(loss, Tensor) or loss.dim():
        got = f"has shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
        raise TypeError(f"the loss of a mini-batch {got}; expected a tensor with one number, "
                        "such as the mean")
    return loss


def _differentiable(loss: Tensor) -> Tensor:
    """The loss itself. Raises TypeError if it does not depend on any parameter that is trained."""
    if not loss.requires_grad:
        raise TypeError("the loss does not depend on the parameters that are trained; compute it from the "
                        "model's outputs")
    return loss


def identity(function: Loss | Predict) -> Hashable:
    """A key that is the same for a method's loss or prediction in every round.

    No other object can take its id, because the recording under this key keeps it alive.
    """
    return getattr(function, "__func__", function), id(getattr(function, "__self__", None))


def _named(function: Loss | Predict) -> str:
    """What an error calls a user's function, with the method that it belongs to."""
    name = getattr(function, "__qualname__", repr(function))
    owner = getattr(function, "__self__", None)
    method = getattr(owner, "name", None)
    return f"'{name}' of the method '{method}'" if method else f"'{name}'"


def _train_mode(module: nn.Module, trained: list[str]) -> None:
    """Training mode, but not for modules whose parameters are all frozen: their batch norm is frozen, too."""
    module.train()
    for name, part in module.named_modules():
        own = [f"{name}.{parameter}" for parameter, _ in part.named_parameters()] if name else trained
        if own and not any(parameter in trained for parameter in own):
            part.eval()


def at(model: nn.Module, row: Tensor, function: Callable[[nn.Module], Tensor],
       buffers: Tensor | None = None) -> Tensor:
    """``function(model)`` at the parameters ``row`` [P] in evaluation mode: another model inside a loss.

    For example ``at(model, lane.teacher, lambda teacher: teacher.features(batch.x))``.

    buffers: batch-norm statistics [B] that belong to ``row``, such as a row of ``fleet.buffers(NAME)``;
        without them those of ``model``.

    Raises ValueError where a row has another length.
    """
    if "features" in vars(model):
        raise TypeError("another model has features of its own, which are not at hand here")
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
    """Views of a row by name, in the order and shapes of tensors. Raises ValueError if they do not fit."""
    like = dict(tensors)
    sizes = [tensor.numel() for tensor in like.values()]
    if sum(sizes) != len(row):
        raise ValueError(f"a row of a model has {len(row)} numbers; expected {sum(sizes)}")
    return {name: part.view(like[name].shape) for name, part in zip(like, row.split(sizes), strict=True)}


def descend(start: Tensors, loss: Callable[[Tensors], Tensor], lr: float, steps: int,
            beat: Callable[[], None]) -> Tensors:
    """Plain gradient descent on tensors that belong to no model; returns them by name after ``steps`` steps.

    start: where it begins, by name; it does not change. loss: a function of such tensors.
    lr: the learning rate. beat: called once a step.
    """
    current = {name: tensor.clone() for name, tensor in start.items()}
    for _ in range(steps):
        leaves = {name: tensor.requires_grad_() for name, tensor in current.items()}
        gradients = torch.autograd.grad(loss(leaves), list(leaves.values()))
        current = {name: (leaf - lr * gradient).detach() for (name, leaf), gradient
                   in zip(leaves.items(), gradients, strict=True)}
        beat()
    return current


def on_features(module: nn.Module) -> nn.Module:
    """The same module, from now on with features for samples: ``features(x)`` is ``x``."""
    vars(module)["features"] = lambda x: x
    return module


def convolves(module: nn.Module) -> bool:
    """Whether a model has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def choose(module: nn.Module, device: torch.device, lanes: int | str,
           replay: bool = True) -> SerialKernel | StackedKernel:
    """The kernel for a model on a device.

    lanes: the most lanes side by side; 1 is serial. ``"auto"`` on a CPU stacks models without convolutions,
        whose batched matrix products give a lane the same bits whatever runs beside it and are by far faster
        for small dense models; it runs models with convolutions serially, because channels-last convolutions
        are faster than any batched form. On a GPU it stacks all models (``memory`` says how many fit).
    replay: as for ``StackedKernel``; a serial kernel records nothing.
    """
    if lanes == "auto":
        lanes = 1 if device.type == "cpu" and convolves(module) else 1 << 30
    return SerialKernel(module) if lanes == 1 else StackedKernel(module, int(lanes), replay)
