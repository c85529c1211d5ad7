"""Many client models in one call: the loss of one client, mapped over stacked lanes
with ``torch.func``.
"""

import gc
import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hpcfl.fleet.losses import Lane, Loss, Predict, Tensors, identity, in_words
from hpcfl.fleet.modules import Frozen, Program, shared, train_mode
from hpcfl.fleet.recordings import Recordable, Recordings
from hpcfl.fleet.stacked_session import GraphedSession, StackedSession


class StackedKernel:
    """All lanes in one call: ``vmap`` of the per-client loss over tensors ``[L, …]``.

    widest: the most lanes in one call.
    replay: whether a step or a prediction that ran often is recorded and the recording
        run instead, on a GPU as a graph.
    apart: whether a step or a prediction in which a lane's bits depend on the others,
        on a CPU, is done for one lane after the other.
    """

    def __init__(
        self, module: nn.Module, widest: int, replay: bool = True, apart: bool = False
    ):
        self.module = module
        self.widest = widest
        self._recordings = Recordings(replay, apart)

    @property
    def dependent(self) -> set[str]:
        """The operators that were called on a CPU and give a lane bits that depend on
        the others.
        """
        return self._recordings.dependent

    def narrow(self, lanes: int) -> None:
        """At most so many lanes from now on: the GPU's memory did not hold twice as
        many.
        """
        print(
            f"hpcfl: the GPU's memory does not hold {2 * lanes} lanes or more; {lanes} from now on, which "
            f"may change the last bits (with runtime.lanes = {lanes} from the beginning)",
            file=sys.stderr,
        )
        self.widest = lanes
        self._recordings.clear()  # their graphs hold memory
        gc.collect()  # and so may what the failed attempt left in cycles
        torch.cuda.empty_cache()

    def lay_out(self, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` as they are."""
        return tensors

    def session(
        self,
        tensors: Tensors,
        trained: list[str],
        loss: Loss,
        frozen: Frozen = "evaluation",
    ) -> StackedSession:
        """The gradients of ``loss`` as a function of mini-batches, at ``tensors`` [L,
        …].

        Steps change ``tensors`` in place; gradients are taken at what they hold at the
        time of the call.

        trained: the names of the parameters to differentiate; the others are frozen.
        frozen: the mode of layers of which all is frozen.
        """
        train_mode(self.module, trained, frozen)
        first = next(iter(tensors.values()))
        return (GraphedSession if first.is_cuda else StackedSession)(
            self.module, self._recordings, tensors, trained, loss, frozen
        )

    def check(self) -> None:
        """Raise RunFailure if a recording turned out to be wrong on a GPU since the
        last call.
        """
        self._recordings.check()

    def settle(self, kind: str, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` that stay for a whole training: on a GPU where its graphs
        look for them.
        """
        return self._recordings.settle(kind, tensors)

    @torch.no_grad()
    def predict(
        self, tensors: Tensors, x: Tensor, variables: Tensors, function: Predict
    ) -> Tensor:
        """``function``'s output ``[L, batch, …]`` in evaluation mode."""
        self.module.eval()
        program = Program(
            self.module, lambda model, x, lane: function(model, x, Lane(**lane))
        )
        names, variable_names = list(tensors), sorted(variables)

        def of_one(named: Tensors, x: Tensor, lane: Tensors) -> Tensor:
            output: Tensor = functional_call(
                program,
                {f"model.{name}": tensor for name, tensor in named.items()},
                (x, lane),
            )
            return output

        def compute(*given: Tensor) -> tuple[Tensor, ...]:
            named, (x, *values) = (
                dict(zip(names, given, strict=False)),
                given[len(names) :],
            )
            named |= shared(self.module, len(x))
            return (
                vmap(of_one)(named, x, dict(zip(variable_names, values, strict=True))),
            )

        given = (*tensors.values(), x, *(variables[name] for name in variable_names))
        if (
            x.is_cuda
        ):  # blocks are large there: a graph of its own for each would only hold memory
            return compute(*given)[0]
        key = ("predict", identity(function), *names, *variable_names)
        recordable = Recordable(key, compute, f"the prediction {in_words(function)}")
        return self._recordings.replayed(recordable)(*given)[0]
