"""Many client models in one call: the loss of one client, mapped over stacked lanes with ``torch.func``."""

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.fleet import graphs
from hpcfl.fleet.graphs import Graphed
from hpcfl.fleet.losses import (
    Batch,
    Lane,
    Lanes,
    Loss,
    Predict,
    Tensors,
    differentiable,
    identity,
    in_two,
    in_words,
)
from hpcfl.fleet.modules import Frozen, Program, train_mode
from hpcfl.fleet.replay import Function, Replayed

Recording = TypeVar("Recording", Replayed, Graphed)
RECORDINGS = 16  # losses and predictions that stay recorded; a closure made anew in every round is a new one


class StackedKernel:
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    widest: the most lanes in one call.
    replay: whether a step or a prediction that ran often is recorded and the recording run instead, on a GPU
        as a graph.
    """

    def __init__(self, module: nn.Module, widest: int, replay: bool = True):
        self.module = module
        self.widest = widest
        self._replay = replay
        self._recordings: dict[Hashable, Replayed | Graphed] = {}

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

    def session(self, tensors: Tensors, trained: list[str], loss: Loss,
                frozen: Frozen = "evaluation") -> "StackedSession":
        """The gradients of ``loss`` as a function of mini-batches, at ``tensors`` [L, …].

        Steps change ``tensors`` in place; gradients are taken at what they hold at the time of the call.

        trained: the names of the parameters to differentiate; the others are frozen.
        frozen: the mode of layers of which all is frozen.
        """
        train_mode(self.module, trained, frozen)
        return StackedSession(self, tensors, trained, loss, frozen)

    def check(self) -> None:
        """Raise RunFailure if a recording turned out to be wrong on a GPU since the last call."""
        for recording in self._recordings.values():
            if isinstance(recording, Graphed):
                recording.check()

    def replayed(self, key: Hashable, function: Function, what: str, labels: int | None = None) -> Function:
        """``function`` with the recordings that were made under ``key``, if there are to be any.

        what, labels: as for ``Replayed``.
        """
        if not self._replay:
            return function
        made = self._recordings.get(key)
        made = made if isinstance(made, Replayed) else Replayed(function, what, labels)
        return self._remembered(key, made)

    def graphed(self, key: Hashable, function: Function, what: str, labels: int, moved: list[int]) -> Graphed:
        """``function`` with the graphs that were captured under ``key``; the arguments are ``Graphed``'s."""
        made = self._recordings.get(key)
        made = made if isinstance(made, Graphed) else Graphed(function, what, labels, moved, self._replay)
        return self._remembered(key, made)

    def _remembered(self, key: Hashable, recording: Recording) -> Recording:
        """The recording itself, the last to go; those used longest ago give way to it."""
        self._recordings.pop(key, None)
        self._recordings[key] = recording
        if len(self._recordings) > RECORDINGS:
            self._recordings.pop(next(iter(self._recordings)))
        return recording

    @torch.no_grad()
    def predict(self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict) -> Tensor:
        """``function``'s output ``[L, batch, …]`` in evaluation mode."""
        self.module.eval()
        program = Program(self.module, lambda model, x, lane: function(model, x, Lane(**lane)))
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
        return self.replayed(key, compute, f"the prediction {in_words(function)}")(*given)[0]


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
        """The gradients of the trained parameters, ``[a, …]`` each, and last losses and data terms [a, 2].

        given: ``[a, …]`` each: the parameters and buffers, x, y and the variables.
        """
        tensors, (x, y, *variables) = list(given[:len(self.names)]), given[len(self.names):]
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[:self.trained]]
        named = dict(zip(self.names, leaves + tensors[self.trained:], strict=True))
        lanes = dict(zip(self.variable_names, variables, strict=True))
        losses = vmap(self.of_one, randomness="error")(named, x, y, lanes)
        # A lane's loss depends on its own tensors alone, so the gradient of the sum holds every lane's own.
        total = differentiable(losses[:, 0].sum())
        return (*torch.autograd.grad(total, leaves, materialize_grads=True), losses.detach())

    def of_one(self, named: Tensors, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """Loss and data term [2] of ONE client with tensors ``named``, on ``x`` [size, …], ``y`` [size]."""
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        loss: Tensor = functional_call(Program(self.module, self._of_model), swapped, (x, y, variables))
        return loss

    def _of_model(self, model: nn.Module, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        lane = Lane(**variables)
        return in_two(self.loss(model, Batch(x, y), lane), lane)


class StackedSession:
    """Gradients of the lanes' losses at ``tensors`` [L, …]; each call moves the buffers among these."""

    def __init__(self, kernel: StackedKernel, tensors: Tensors, trained: list[str], loss: Loss,
                 frozen: Frozen):
        self._kernel, self._tensors, self._trained, self._loss = kernel, tensors, trained, loss
        self._frozen = frozen
        self._names = [*trained, *(name for name in tensors if name not in trained)]
        self._buffers = {name for name, _ in kernel.module.named_buffers()} & tensors.keys()
        self._first = next(iter(tensors.values()))
        self._runs: dict[tuple[str, ...], Function] = {}  # by names of variables, which mostly are the same

    def computed(self, lanes: int) -> int:
        """How many lanes a call for so many computes."""
        return graphs.width(lanes, len(self._first)) if self._first.is_cuda else lanes

    def __call__(self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors) -> tuple[Tensors, Tensor]:
        """The gradients by name ``[a, …]``, losses and data terms [a, 2], on mini-batches of ``lanes``.

        On a GPU the gradients are good until the next call.

        x: ``[a, size, …]``. y: [a, size]. variables: ``[a, …]`` by name.
        Raises TypeError where a loss is not one number or does not depend on what is trained.
        """
        names, variable_names = self._names, tuple(sorted(variables))
        tensors = [self._tensors[name][lanes] for name in names]
        given = (*tensors, x, y, *(variables[name] for name in variable_names))
        if variable_names not in self._runs:
            self._runs[variable_names] = self._recorded(variable_names)
        run = self._runs[variable_names]
        if x.is_cuda:
            *gradients, losses = run(given, len(self._first))
            losses = losses.clone()  # the next call overwrites them
        else:
            *gradients, losses = run(*given)
        if isinstance(lanes, Tensor):  # indices gave copies; a slice gave views, whose buffers moved in place
            for name, tensor in zip(names, tensors, strict=True):
                if name in self._buffers:
                    self._tensors[name].index_copy_(0, lanes, tensor)
        return dict(zip(self._trained, gradients, strict=True)), losses

    def _recorded(self, variable_names: tuple[str, ...]) -> Function:
        """What computes gradients and losses: a ``Graphed`` on a GPU, else the function or its recordings."""
        names = self._names
        run = StackedLoss(self._kernel.module, self._loss, names, len(self._trained),
                          [*variable_names]).gradients
        key = (identity(self._loss), self._frozen, len(self._trained), *names, *variable_names)
        recorded = key, run, f"the loss {in_words(self._loss)}", len(names) + 1
        if self._first.is_cuda:
            return self._kernel.graphed(*recorded, [position for position, name in enumerate(names)
                                                    if name in self._buffers])
        # batch norm writes to its buffers, which only graphs can repeat
        return run if self._buffers else self._kernel.replayed(*recorded)
