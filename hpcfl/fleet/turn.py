"""One step in a method's own hands; the loop over mini-batches stays with the fleet."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hpcfl.fleet.losses import Lanes, Tensors, regularised
from hpcfl.fleet.optimizers import Optimizer
from hpcfl.rows import pinned, places, randomness


class Draws:
    """Uniform numbers for the steps of a chunk's lanes, and how many steps each lane
    has taken.

    clients: the ids of the lanes' clients. steps: how many each lane takes in an epoch.
    taken: the steps that each lane has taken in this training, int64 [L].
    """

    def __init__(
        self,
        seed: int,
        round: int,
        clients: list[int],
        steps: list[int],
        device: torch.device,
    ):
        self._key, self._clients, self._steps, self._device = (
            (seed, round),
            clients,
            steps,
            device,
        )
        self._epoch = 0
        self._tables: dict[str, Tensor] = {}
        self._every = torch.arange(len(clients), device=device)
        self.taken = torch.zeros(len(clients), dtype=torch.int64, device=device)
        self._before = self.taken  # what was taken before this epoch

    def begin(self, epoch: int) -> None:
        """From now on steps belong to this epoch, counted from 0."""
        self._epoch, self._before = epoch, self.taken.clone()
        self._tables.clear()

    def take(self, lanes: Lanes) -> None:
        """These lanes have taken one more step."""
        if isinstance(lanes, slice):
            self.taken[lanes].add_(1)
        else:
            places.put(self.taken, lanes, self.taken[lanes] + 1)

    def uniform(self, lanes: Lanes, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers in [0, 1), ``[a, *shape]``, for the next step of these lanes.

        Raises ValueError where one purpose is asked for two shapes in an epoch.
        """
        if (
            purpose not in self._tables
        ):  # for a whole epoch: one transfer instead of one a step
            self._tables[purpose] = pinned.on_device(
                self._table(purpose, shape).float(), self._device
            )
        table = self._tables[purpose]
        if table.shape[2:] != shape:
            raise ValueError(
                f"uniform numbers for '{purpose}' have shape {list(table.shape[2:])} in this "
                f"epoch and cannot be {list(shape)}; name another purpose"
            )
        return table[self._every[lanes], self.taken[lanes] - self._before[lanes]]

    def _table(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """An epoch's numbers, float64 ``[L, most steps, *shape]``: those steps' part of
        ``Fleet.uniform``.
        """
        numbers_per_step = int(np.prod(shape, dtype=np.int64))
        table = np.zeros((len(self._clients), max(self._steps), *shape))
        seed, round = self._key
        for row, client, steps in zip(table, self._clients, self._steps, strict=True):
            count = steps * numbers_per_step
            drawn = randomness.uniform(
                seed,
                "uniform",
                purpose,
                round,
                client,
                skip=self._epoch * count,
                count=count,
            )
            row[:steps] = drawn.reshape(steps, *shape)
        return torch.from_numpy(table)


# of (lanes, x, y, variables): the gradients by name, and losses and their data terms
# [a, 2]
Gradient = Callable[[Lanes, Tensor, Tensor, Tensors], tuple[Tensors, Tensor]]


@dataclass
class Turn:
    """What a method's ``step(turn)`` sees: ``a`` lanes at their next mini-batch, or
    their next few.

    Rows cover just the columns that are trained, ``[a, width]``.

    variables: the method's tensors ``[a, …]`` by name; a step changes one by assigning
        a new tensor.
    index: how many steps each lane did before in this training, int64 [a].
    """

    variables: Tensors
    index: Tensor
    _names: list[str]
    _tensors: Tensors
    _lanes: Lanes
    _batches: list[tuple[Tensor, Tensor]]
    _gradient: Gradient
    _optimizer: Optimizer
    _draws: Draws
    _losses: Tensor = field(default_factory=lambda: torch.zeros(2))
    # the models' own rows, while the models still are where a gradient was taken last
    _own: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """Losses and data terms [a, 2] of the last gradient that was taken, which count
        as the step's.
        """
        return self._losses.clone()  # on a GPU the next gradient overwrites them

    def rows(self) -> Tensor:
        """The trained columns of the lanes' models, a copy ``[a, width]``."""
        if self._own is not None:
            return self._own.clone()
        return self._flat(
            {name: self._tensors[name][self._lanes] for name in self._names}
        )

    def write(self, rows: Tensor) -> None:
        """Replace the trained columns of the lanes' models by ``rows`` [a, width]."""
        self._own = None
        self._put(rows)

    def _put_back(self) -> None:
        """Give the models their own rows again if a gradient was taken elsewhere and
        nothing came after it.

        Whatever reads or changes the models calls it first, and the fleet after each
        step.
        """
        if self._own is not None:
            self.write(self._own)

    def _put(self, rows: Tensor) -> None:
        if rows.is_cuda and isinstance(self._lanes, slice):
            own = [self._tensors[name][self._lanes] for name in self._names]
            if all(
                part.is_contiguous() for part in own
            ):  # flat they are views: one launch writes them all
                flat = [part.flatten(1) for part in own]
                # CUDA's kernel takes any rows without gaps for rows that lie one after
                # the other
                torch.split_with_sizes_copy(
                    rows.contiguous(), [part.shape[1] for part in flat], dim=1, out=flat
                )
                return
        for name, part in self._split(rows).items():
            places.put(self._tensors[name], self._lanes, part)

    def descend(self, direction: Tensor) -> None:
        """Do one step of the experiment's optimiser with ``direction`` [a, width] as
        the gradient.
        """
        self._put_back()
        self._optimizer.step(self._lanes, self._split(direction))

    def gradient(self, rows: Tensor | None = None, batch: int = 0) -> Tensor:
        """The gradient of the loss on a mini-batch, ``[a, width]``.

        rows: where it is taken, ``[a, width]``; by default at the lanes' models.
        batch: which of the step's mini-batches. Wherever it is taken, batch norm moves
            the statistics of the model that is trained, once a call.
        """
        if rows is None:
            self._put_back()
        else:
            self._own = self.rows() if self._own is None else self._own
            self._put(rows)
        return self._flat(self._gradients(batch))

    def regulariser(self, terms: Tensor) -> None:
        """What the step minimises beside the loss, [a]: it joins ``losses``, and not
        their data terms.
        """
        self._losses = regularised(self._losses, terms)

    def move(
        self,
        function: Callable[..., object],
        *others: Tensor,
        batch: int = 0,
        clip: bool = False,
    ) -> None:
        """Take the gradient on a mini-batch at the lanes' models and move these by
        ``function``.

        It is called with (rows, gradient, *others) and changes the rows in place, and
        nothing else. It works
        element by element: what becomes of a number depends on those at the same place
            alone. So it can be given a layer at a time, in any shape, without putting
            whole rows together first.

        others: ``[a, width]`` each. clip: whether each lane's whole gradient is first
        scaled to a norm of at most ``training.clip``, where that is set.
        """
        self._put_back()
        gradients = self._gradients(batch)
        if clip:
            clipped = self._optimizer.clipped([gradients[name] for name in self._names])
            gradients = dict(zip(self._names, clipped, strict=True))
        if self._losses.is_cuda:  # few large operations
            rows = self.rows()
            function(rows, self._flat(gradients), *others)
            self.write(rows)
            return
        named = [self._split(other) for other in others]
        for name in self._names:
            own = self._tensors[name][self._lanes]
            function(own, gradients[name], *(parts[name] for parts in named))
            if isinstance(self._lanes, Tensor):  # indices gave a copy
                places.put(self._tensors[name], self._lanes, own)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), ``[a, *shape]``, keyed by purpose, round, client
        and step.

        They are ``fleet.uniform(purpose, steps, *shape)`` at ``index``. Raises
        ValueError where one purpose is asked for two shapes in an epoch.
        """
        return self._draws.uniform(self._lanes, purpose, shape)

    def _gradients(self, batch: int) -> Tensors:
        """The gradients by name where the models are now, good until the next ones are
        taken.
        """
        gradients, self._losses = self._gradient(
            self._lanes, *self._batches[batch], self.variables
        )
        return gradients

    def _flat(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].flatten(1) for name in self._names], dim=1)

    def _split(self, rows: Tensor) -> Tensors:
        shapes = [self._tensors[name].shape[1:] for name in self._names]
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        return {
            name: part.reshape(-1, *shape)
            for name, part, shape in zip(self._names, parts, shapes, strict=True)
        }
