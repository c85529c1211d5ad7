"""What the kernels promise: gradients of lanes, mini-batch after mini-batch, at tensors
that steps change.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from hpcfl.fleet.losses import Lanes, Tensors
from hpcfl.fleet.optimizers import Optimizer


class Session(ABC):
    """The gradients of a loss at ``tensors`` [L, …], which a kernel may have put to
    another place.

    Steps change ``tensors`` in place; gradients are taken at what they hold at the time
    of the call.
    """

    tensors: Tensors

    @abstractmethod
    def computed(self, lanes: int) -> int:
        """How many lanes a call for so many computes."""

    @abstractmethod
    def __call__(
        self, lanes: Lanes, x: Tensor, y: Tensor, variables: Tensors
    ) -> tuple[Tensors, Tensor]:
        """The gradients by name ``[a, …]``, losses and data terms [a, 2], on
        mini-batches of ``lanes``.

        They may be overwritten by the next call.

        x: ``[a, size, …]``. y: [a, size]. variables: ``[a, …]`` by name. Raises
        TypeError where a loss is not one number or does not depend on what is trained.
        """

    def step(
        self,
        lanes: Lanes,
        x: Tensor,
        y: Tensor,
        variables: Tensors,
        optimizer: Optimizer,
    ) -> Tensor:
        """One step of the optimiser with these gradients.

        Returns losses and data terms [a, 2], which no later call overwrites.
        """
        gradients, losses = self(lanes, x, y, variables)
        optimizer.step(lanes, gradients)
        return losses
