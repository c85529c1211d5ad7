"""One step in a method's own hands: gradients and rows of the lanes at work, the loop stays with the fleet."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpcfl.fleet.kernels import Tensors
from hpcfl.fleet.optimizers import Lanes


@dataclass
class Turn:
    """What a method's ``step(turn)`` sees for ``a`` lanes on their next mini-batch, or their next few.

    ``variables`` holds the method's per-lane tensors ``[a, …]``; assign a new tensor to change one.
    Rows cover the columns that are trained, ``[a, width]``.
    """

    variables: Tensors
    _names: list[str]
    _tensors: Tensors
    _lanes: Lanes
    _batches: list[tuple[Tensor, Tensor]]
    _gradient: Callable[..., tuple[Tensors, Tensor]]
    losses: Tensor = field(default_factory=lambda: torch.zeros(()))

    def rows(self) -> Tensor:
        """The trained columns of the lanes' models, a copy ``[a, width]``."""
        return self._flat({name: self._tensors[name][self._lanes] for name in self._names})

    def write(self, rows: Tensor) -> None:
        """Replace the trained columns of the lanes' models."""
        start = 0
        for name in self._names:
            shape = self._tensors[name].shape[1:]
            size = shape.numel()
            self._tensors[name][self._lanes] = rows[:, start:start + size].view(-1, *shape)
            start += size

    def gradient(self, rows: Tensor | None = None, batch: int = 0) -> Tensor:
        """∇ of the loss on a mini-batch, ``[a, width]``, at the lanes' models or at ``rows`` [a, width] instead.

        ``losses`` [a] holds the values of the last call: the step's training loss.
        """
        if rows is None:
            gradients, self.losses = self._gradient(self._lanes, *self._batches[batch], self.variables)
            return self._flat(gradients)
        kept = self.rows()
        self.write(rows)
        gradient = self.gradient(batch=batch)
        self.write(kept)
        return gradient

    def _flat(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].flatten(1) for name in self._names], dim=1)
