"""What training asks of a kernel: steps of some lanes, mini-batch after mini-batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from hpcfl.clients.losses import Batch, Lanes, Tensors
from hpcfl.clients.optimizers import Optimizer


class Session(ABC):
    """Lanes that train: their models, the method's variables and the optimiser.

    Steps change the models in place; gradients are taken at what they hold at the time
    of the call.

    Attributes:
        tensors: parameters and buffers, ``[L, …]`` by name.
        trained: the names of the parameters to differentiate.
        variables: what the loss reads as ``lane.NAME``, ``[L, …]`` by name.
        optimizer: None where nothing but gradients is asked for.
        samples: how many samples of each lane gradients were taken of, added up over
            all calls; a lane that a call leaves out has fewer.
    """

    def __init__(
        self,
        tensors: Tensors,
        trained: list[str],
        variables: Tensors | None = None,
        optimizer: Optimizer | None = None,
    ):
        self.tensors, self.trained = tensors, trained
        self.variables, self.optimizer = variables or {}, optimizer
        self.samples = 0

    def step(self, lanes: Lanes, batch: Batch) -> Tensor:
        """One step of the optimiser for ``a`` lanes.

        Args:
            lanes: which of them.
            batch: their mini-batches, ``x`` [a, size, …] and ``y`` [a, size].

        Returns:
            Losses and data terms [a, 2].
        """
        assert self.optimizer is not None
        variables = {name: value[lanes] for name, value in self.variables.items()}
        gradients, losses = self.gradients(lanes, batch, variables)
        self.optimizer.step(lanes, gradients)
        return losses

    def gradients(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        """What ``differentiate`` gives, with the samples counted."""
        self.samples += batch.y.shape[1]
        return self.differentiate(lanes, batch, variables)

    @abstractmethod
    def differentiate(
        self, lanes: Lanes, batch: Batch, variables: Mapping[str, Tensor]
    ) -> tuple[Tensors, Tensor]:
        """The gradients of ``a`` lanes' losses on their mini-batches.

        Args:
            lanes: which of them.
            batch: ``x`` [a, size, …] and ``y`` [a, size].
            variables: ``[a, …]`` by name.

        Returns:
            Gradients ``[a, …]`` by name, which the next call may overwrite, and losses
            and data terms [a, 2].

        Raises:
            TypeError: A loss is not one number, or depends on nothing that is trained.
        """

    def computed_lanes(self, lanes: int) -> int:
        """How many lanes a call for so many computes."""
        return lanes
