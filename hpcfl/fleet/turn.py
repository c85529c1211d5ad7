"""One step in a method's own hands: gradients and rows of the lanes at work, the loop stays with the fleet."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpcfl.fleet.kernels import Tensors
from hpcfl.fleet.optimizers import Lanes, Optimizer

Gradient = Callable[[Lanes, Tensor, Tensor, Tensors], tuple[Tensors, Tensor]]  # of lanes, x, y and variables


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
    _gradient: Gradient
    _optimizer: Optimizer
    losses: Tensor = field(default_factory=lambda: torch.zeros(()))

    def rows(self) -> Tensor:
        """The trained columns of the lanes' models, a copy ``[a, width]``."""
        return self._flat({name: self._tensors[name][self._lanes] for name in self._names})

    def write(self, rows: Tensor) -> None:
        """Replace the trained columns of the lanes' models."""
        for name, part in self._split(rows).items():
            self._tensors[name][self._lanes] = part

    def descend(self, direction: Tensor) -> None:
        """One step of the experiment's optimiser with ``direction`` [a, width] for a gradient."""
        self._optimizer.step(self._tensors, self._lanes, self._split(direction))

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

    def _split(self, rows: Tensor) -> Tensors:
        shapes = [self._tensors[name].shape[1:] for name in self._names]
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        return {name: part.reshape(-1, *shape) for name, part, shape in zip(self._names, parts, shapes, strict=True)}
