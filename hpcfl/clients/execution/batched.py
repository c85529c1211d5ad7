"""Many client models in one call: the loss of one client, mapped over lanes with
``torch.func``.
"""

import gc
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.clients.execution import cuda_graphs
from hpcfl.clients.execution.cuda_graphs import Captures, Graphed
from hpcfl.clients.execution.kernel import KEYS, Kernel, Keys, Session
from hpcfl.clients.execution.lane_independence import Function
from hpcfl.clients.execution.recorded import Recorded
from hpcfl.clients.losses import (
    Batch,
    Frozen,
    Lane,
    Lanes,
    Loss,
    Predict,
    Program,
    Tensors,
    gradients_of,
    identity,
    in_two,
    in_words,
    shared,
)
from hpcfl.models.random import keyed, random_layers
from hpcfl.models.replaced import side_by_side
from hpcfl.rows import places

# ``functional_call(program, tensors, arguments)`` for each lane with its own ``tensors``
# and ``arguments``, ``[L, …]`` by name and in order.
call_lanes = vmap(functional_call, in_dims=(None, 0, 0), randomness="error")
# Losses and predictions that stay recorded; a closure made anew in every round is a new
# one.
MOST = 16


class BatchedKernel(Kernel):
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    On a CPU what computes gradients is recorded when it ran often, on a GPU it becomes
    a graph. Each call moves the buffers among the tensors.
    """

    def __init__(
        self, module: nn.Module, widest: int, replay: bool = True, apart: bool = False
    ):
        """Args:
        replay: whether a step or a prediction that ran often is recorded and the
            recording run instead, on a GPU as a graph.
        apart: whether a step or a prediction in which a lane's bits depend on the
            others, on a CPU, is done for one lane after the other.
        """
        super().__init__(module, widest)
        self._replay, self._apart = replay, apart
        self._recordings: dict[Hashable, Recorded | Graphed] = {}  # oldest use first
        self._captures = Captures()

    def narrow(self, failed: int) -> None:
        super().narrow(failed)
        lanes = self.widest
        print(
            f"hpcfl: the GPU's memory did not hold {failed} lanes; at most {lanes} from now on, which "
            f"may change the last bits (with runtime.lanes = {lanes} from the beginning it does not)",
            file=sys.stderr,
        )
        self.forget()  # graphs hold memory
        gc.collect()  # and so may what the failed attempt left in cycles
        torch.cuda.empty_cache()

    def forget(self) -> None:
        """Let go of all recordings, and of the memory on a GPU that they know."""
        self._recordings.clear()
        self._captures.forget()

    def begin(
        self,
        tensors: Tensors,
        trained: list[str],
        loss: Loss,
        frozen: Frozen = "evaluation",
        variables: Tensors | None = None,
        keys: Keys | None = None,
    ) -> "BatchedSession":
        names = [*trained, *(name for name in tensors if name not in trained)]
        drawn = [] if keys is None else [KEYS]
        variable_names = sorted([*(variables or {}), *drawn])
        losses = BatchedLoss(
            module=self.module,
            loss=loss,
            names=names,
            trained=len(trained),
            variable_names=variable_names,
        )
        buffers = {name for name, _ in self.module.named_buffers()} & tensors.keys()
        kind = identity(loss), frozen, len(trained)
        recordable = Recordable(
            (*kind, *names, *variable_names),
            losses.gradients,
            f"the loss {in_words(loss)}",
            labels=len(names) + 1,
            writes=[place for place, name in enumerate(names) if name in buffers],
        )
        first = next(iter(tensors.values()))
        compute: Function = (
            partial(self.graphed(recordable), len(first))
            if first.is_cuda
            else self.recorded(recordable)
        )
        return BatchedSession(
            compute,
            names,
            variable_names,
            buffers,
            self,
            tensors,
            trained,
            loss,
            frozen,
            variables,
            keys,
        )

    def computed_lanes(self, lanes: int, most: int) -> int:
        on_gpu = next(self.module.parameters()).is_cuda
        return cuda_graphs.width(lanes, most) if on_gpu else lanes

    def check(self) -> None:
        for recording in self._recordings.values():
            if isinstance(recording, Graphed):
                recording.check()

    @torch.no_grad()
    def predict(
        self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict
    ) -> Tensor:
        self.module.eval()
        program = Program(
            self.module, lambda model, x, lane: function(model, x, Lane(**lane))
        )
        names, variable_names = list(tensors), sorted(variables)

        def compute(*given: Tensor) -> tuple[Tensor, ...]:
            x, *values = given[len(names) :]
            named = dict(zip(names, given, strict=False)) | shared(self.module, len(x))
            swapped = {f"model.{name}": tensor for name, tensor in named.items()}
            lanes = dict(zip(variable_names, values, strict=True))
            with side_by_side():
                return (call_lanes(program, swapped, (x, lanes)),)

        given = (*tensors.values(), x, *(variables[name] for name in variable_names))
        if x.is_cuda:
            # Blocks are large there: a graph of its own for each would only hold memory.
            return compute(*given)[0]
        key = ("predict", identity(function), *names, *variable_names)
        what = f"the prediction {in_words(function)}"
        return self.recorded(Recordable(key, compute, what))(*given)[0]

    def recorded(self, recordable: "Recordable") -> Recorded:
        """Return the function for a CPU with its recordings, if it may be recorded."""
        recording = self._recordings.get(recordable.key)
        if not isinstance(recording, Recorded):
            recording = Recorded(
                function=recordable.function,
                what=recordable.what,
                labels=recordable.labels,
                replay=self._replay and not recordable.writes,
                apart=self._apart,
                writes=bool(recordable.writes),
                dependent=self.dependent,
            )
        self._remember(recordable.key, recording, evicted=1)
        return recording

    def graphed(self, recordable: "Recordable") -> Graphed:
        """Return the function for a GPU with its captured graphs."""
        recording = self._recordings.get(recordable.key)
        if not isinstance(recording, Graphed):
            recording = Graphed(
                function=recordable.function,
                what=recordable.what,
                labels=recordable.labels,
                written=recordable.writes,
                captures=self._captures if self._replay else None,
            )
        # Many at once, because with one graph all go and have to be captured anew.
        self._remember(recordable.key, recording, evicted=MOST // 2)
        return recording

    def _remember(
        self, key: Hashable, recording: Recorded | Graphed, evicted: int
    ) -> None:
        """Put a recording at the end of the least recently used ones.

        Args:
            evicted: how many of the oldest go where there are too many.
        """
        self._recordings.pop(key, None)
        self._recordings[key] = recording
        if len(self._recordings) > MOST:
            for oldest in list(self._recordings)[:evicted]:
                del self._recordings[oldest]
            self._captures.forget()


class BatchedSession(Session):
    """A session of all lanes in one call."""

    def __init__(
        self,
        compute: Function,
        names: list[str],
        variable_names: list[str],
        buffers: set[str],
        *arguments: Any,
    ) -> None:
        """Begin a session.

        Args:
            compute: returns the gradients and then the losses of lanes, given their
                tensors in the order of ``names``, x, y and their variables.
            names: of the parameters and buffers, those that are trained first.
            variable_names: of the variables, in order.
            buffers: names of the tensors that a call moves.
            arguments: as for ``Session``.
        """
        super().__init__(*arguments)
        self._compute, self._buffers = compute, buffers
        self._names, self._variable_names = names, variable_names

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        variables = self._with_keys(lanes, batch, variables)
        chosen = [self.tensors[name][lanes] for name in self._names]
        values = [variables[name] for name in self._variable_names]
        *parts, losses = self._compute(*chosen, batch.x, batch.y, *values)
        if isinstance(lanes, Tensor):
            # Indices gave copies; a slice gave views, whose buffers moved in place.
            for name, tensor in zip(self._names, chosen, strict=True):
                if name in self._buffers:
                    places.index_copy(self.tensors[name], lanes, tensor)
        return dict(zip(self.trained, parts, strict=True)), losses


@dataclass(frozen=True)
class Recordable:
    """A function of tensors ``[L, …]`` alone that may be recorded.

    Attributes:
        key: the same for the same function in every round.
        what: names the function in an error.
        labels: the position of the argument that holds class numbers, if there is one.
        writes: positions of arguments that it changes, which only graphs can repeat.
    """

    key: Hashable
    function: Function
    what: str
    labels: int | None = None
    writes: Sequence[int] = ()


class LossProgram(nn.Module):
    """The loss of ONE client as a module, in which ``functional_call`` can swap the
    model's tensors.
    """

    def __init__(self, model: nn.Module, loss: Loss):
        super().__init__()
        self.model, self.loss = model, loss
        self._random_layers = random_layers(model)

    def forward(self, x: Tensor, y: Tensor, variables: Tensors) -> Tensor:
        """Loss and data term [2] on ``x`` [size, …] and ``y`` [size]."""
        own = dict(variables)
        with keyed(self._random_layers, own.pop(KEYS, None)):
            lane = Lane(**own)
            return in_two(self.loss(self.model, Batch(x, y), lane), lane)


class BatchedLoss:
    """The losses of lanes as a function of tensors alone, which can be recorded."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        names: list[str],
        trained: int,
        variable_names: list[str],
    ):
        """``names`` are those of parameters and buffers, of which the first ``trained``
        are differentiated.
        """
        self._module, self._program = module, LossProgram(module, loss)
        self._names, self._trained = names, trained
        self._variable_names = variable_names

    def gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the trained parameters, ``[a, …]`` each. The last
        tensor holds losses and data terms [a, 2].

        Args:
            given: ``[a, …]`` each: the parameters and buffers, x, y and the variables.
        """
        x, y, *variables = given[len(self._names) :]
        leaves = [tensor.detach().requires_grad_() for tensor in given[: self._trained]]
        frozen = given[self._trained : len(self._names)]
        named = dict(zip(self._names, [*leaves, *frozen], strict=True))
        named |= shared(self._module, len(x))
        lanes = dict(zip(self._variable_names, variables, strict=True))
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        with side_by_side():
            losses: Tensor = call_lanes(self._program, swapped, (x, y, lanes))
        # A lane's loss depends on its own tensors alone, so the gradient of the sum
        # holds every lane's own.
        gradients = gradients_of(losses[:, 0].sum(), leaves)
        return (*gradients, losses.detach())
