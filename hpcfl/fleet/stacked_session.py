"""Sessions of the stacked kernel: the loss of one client, mapped over lanes, and its
gradients.

On a CPU they are recorded when they ran often, on a GPU graphs, and there a plain step
is one graph whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.experiment.sections import Training
from hpcfl.fleet import graphs
from hpcfl.fleet.graphs import Graphed, Update
from hpcfl.fleet.losses import (
    Batch,
    Lane,
    Lanes,
    Loss,
    Tensors,
    differentiable,
    identity,
    in_two,
    in_words,
)
from hpcfl.fleet.modules import Frozen, Program, shared
from hpcfl.fleet.optimizers import CHANGED, Optimizer, Parts, update
from hpcfl.fleet.recordings import Recordable, Recordings
from hpcfl.fleet.replay import Function
from hpcfl.fleet.session import Session
from hpcfl.rows import places


@dataclass(frozen=True)
class StackedLoss:
    """The losses of lanes as a function of tensors alone, which can be recorded.

    names: of the parameters and buffers, of which the first ``trained`` are
        differentiated.
    variable_names: of the variables of the lanes.
    """

    module: nn.Module
    loss: Loss
    names: list[str]
    trained: int
    variable_names: list[str]

    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the trained parameters, ``[a, …]`` each, and last losses and
        data terms [a, 2].

        given: ``[a, …]`` each: the parameters and buffers, x, y and the variables.
        """
        tensors, (x, y, *variables) = (
            list(given[: len(self.names)]),
            given[len(self.names) :],
        )
        leaves = [
            tensor.detach().requires_grad_() for tensor in tensors[: self.trained]
        ]
        named = dict(zip(self.names, leaves + tensors[self.trained :], strict=True))
        named |= shared(self.module, len(x))
        lanes = dict(zip(self.variable_names, variables, strict=True))
        losses = vmap(self.of_one, randomness="error")(named, x, y, lanes)
        # A lane's loss depends on its own tensors alone, so the gradient of the sum
        # holds every lane's own.
        total = differentiable(losses[:, 0].sum())
        return (
            *torch.autograd.grad(total, leaves, materialize_grads=True),
            losses.detach(),
        )

    def of_one(
        self, named: Tensors, x: Tensor, y: Tensor, variables: Tensors
    ) -> Tensor:
        """Loss and data term [2] of ONE client with tensors ``named``, on ``x`` [size,
        …], ``y`` [size].
        """
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        loss: Tensor = functional_call(
            Program(self.module, self._of_model), swapped, (x, y, variables)
        )
        return loss

    def _of_model(
        self, model: nn.Module, x: Tensor, y: Tensor, variables: Tensors
    ) -> Tensor:
        lane = Lane(**variables)
        return in_two(self.loss(model, Batch(x, y), lane), lane)


class StackedSession(Session):
    """Gradients of the lanes' losses at ``tensors`` [L, …]; each call moves the buffers
    among these.
    """

    def __init__(
        self,
        module: nn.Module,
        recordings: Recordings,
        tensors: Tensors,
        trained: list[str],
        loss: Loss,
        frozen: Frozen,
    ):
        self._module, self._recordings, self._loss, self._frozen = (
            module,
            recordings,
            loss,
            frozen,
        )
        self.tensors = recordings.settle("tensors", tensors)
        self._trained, self._names = (
            trained,
            [*trained, *(name for name in tensors if name not in trained)],
        )
        self._buffers = {name for name, _ in module.named_buffers()} & tensors.keys()
        self._functions: dict[
            tuple[str, ...], Function
        ] = {}  # by names of variables, mostly the same

    def computed(self, lanes: int) -> int:
        return lanes

    def __call__(
        self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors
    ) -> tuple[Tensors, Tensor]:
        variable_names = tuple(sorted(variables))
        tensors = [self.tensors[name][lanes] for name in self._names]
        if variable_names not in self._functions:
            self._functions[variable_names] = self._recorded(variable_names)
        *gradients, losses = self._functions[variable_names](
            *tensors, x, y, *(variables[name] for name in variable_names)
        )
        if isinstance(
            lanes, Tensor
        ):  # indices gave copies; a slice gave views, whose buffers moved in place
            for name, tensor in zip(self._names, tensors, strict=True):
                if name in self._buffers:
                    places.put(self.tensors[name], lanes, tensor)
        return dict(zip(self._trained, gradients, strict=True)), losses

    def _recorded(self, variable_names: tuple[str, ...]) -> Function:
        """What computes gradients and losses, or its recordings."""
        return self._recordings.replayed(self._recordable(variable_names))

    def _recordable(self, variable_names: tuple[str, ...], *of_step: str) -> Recordable:
        """What computes gradients and losses. of_step: what else its recordings depend
        on.
        """
        names, trained = self._names, len(self._trained)
        run = StackedLoss(self._module, self._loss, names, trained, [*variable_names])
        return Recordable(
            (
                identity(self._loss),
                self._frozen,
                trained,
                *names,
                *variable_names,
                *of_step,
            ),
            run.gradients,
            f"the loss {in_words(self._loss)}",
            len(names) + 1,
            writes=bool(self._buffers),  # as batch norm does
        )


class GraphedSession(StackedSession):
    """The same on a GPU, where gradients and losses are good until the next call.

    The first lanes of ``tensors`` are where graphs look for them, so that a step of
    these is one graph.
    """

    def __init__(
        self,
        module: nn.Module,
        recordings: Recordings,
        tensors: Tensors,
        trained: list[str],
        loss: Loss,
        frozen: Frozen,
    ):
        super().__init__(module, recordings, tensors, trained, loss, frozen)
        self._most = len(next(iter(self.tensors.values())))
        self._moved = [
            position
            for position, name in enumerate(self._names)
            if name in self._buffers
        ]
        self._steps: dict[tuple[str, ...], Graphed] = {}  # by names of variables

    def computed(self, lanes: int) -> int:
        return graphs.width(lanes, self._most)

    def step(
        self,
        lanes: Lanes,
        x: Tensor,
        y: Tensor,
        variables: Tensors,
        optimizer: Optimizer,
    ) -> Tensor:
        if isinstance(lanes, Tensor) or lanes.start:
            return super().step(lanes, x, y, variables, optimizer).clone()
        variable_names, parts = tuple(sorted(variables)), optimizer.parts(lanes)
        if variable_names not in self._steps:
            self._steps[variable_names] = self._recorded_step(
                variable_names, optimizer.training, parts
            )
        weights, *others = parts.values()
        frozen = [
            self.tensors[name][lanes] for name in self._names[len(self._trained) :]
        ]
        given = [
            *weights,
            *frozen,
            x,
            y,
            *(variables[name] for name in variable_names),
            *chain(*others),
        ]
        (losses,) = self._steps[variable_names](given, self._most)
        return losses.clone()

    def _recorded(self, variable_names: tuple[str, ...]) -> Function:
        graphed, most = (
            self._recordings.graphed(self._recordable(variable_names), self._moved),
            self._most,
        )
        return lambda *given: graphed(
            given, most
        )  # without the session, which holds a GPU's memory and this

    def _recorded_step(
        self, variable_names: tuple[str, ...], training: Training, parts: Parts
    ) -> Graphed:
        """Gradients, losses and a step of the optimiser, whose ``parts`` follow the
        other arguments.
        """
        trained, begin = len(self._trained), len(self._names) + 2 + len(variable_names)
        kinds = [kind for kind, part in parts.items() for _ in part]
        changed = [
            *range(trained),
            *(
                begin + number
                for number, kind in enumerate(kinds[trained:])
                if kind in CHANGED
            ),
        ]
        step = Update(
            _step(training, kinds, trained, begin), changed, begin, used_up=trained
        )
        return self._recordings.graphed(
            self._recordable(variable_names, "step", *kinds), self._moved, step
        )


def _step(
    training: Training, kinds: list[str], trained: int, begin: int
) -> Callable[[Sequence[Tensor], Sequence[Tensor]], None]:
    """A step of the optimiser for ``graphs.Update``: its arguments are the first
    ``trained`` and those from ``begin`` on, which are of these ``kinds``.
    """
    # One kernel works on all gradients and weights if they lie alike; a plain step has
    # no such kernel, because its rate is a tensor.
    in_lists = training.optimizer != "sgd" or bool(
        training.momentum or training.weight_decay
    )

    def apply(given: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        parts: Parts = {}
        for kind, tensor in zip(kinds, [*given[:trained], *given[begin:]], strict=True):
            parts.setdefault(kind, []).append(tensor)
        gradients = [
            output.contiguous() if in_lists else output for output in outputs[:trained]
        ]
        update(training, parts, gradients, {})  # the factors are among the parts

    return apply
