"""One step in a method's own hands; the loop over mini-batches stays with the fleet."""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.execution import Session
from hpcfl.clients.losses import Batch, Lanes, Tensors, add_terms
from hpcfl.clients.optimizers import Optimizer
from hpcfl.rows import mixing, randomness


@dataclass
class StepRandom:
    """Uniform numbers and keys of random layers for the steps of a chunk's lanes, and
    how many steps each lane has taken.

    Attributes:
        client_keys: the round and the id of each lane's client.
        steps: how many each lane takes in an epoch.
        phase: the training's.
        layers: how many random layers the model has.
        taken: the steps that each lane has taken in this training, int64 [L].
    """

    seed: int
    client_keys: list[tuple[int, int]]
    steps: list[int]
    device: torch.device
    phase: str
    layers: int

    def __post_init__(self) -> None:
        """Begin with the first step of the first epoch."""
        self._epoch = 0
        self._gradient = 0  # how many the step has taken with keys
        self._tables: dict[str, Tensor] = {}
        self._key_tables: dict[int, Tensor] = {}
        lanes = len(self.client_keys)
        self._all_lanes = torch.arange(lanes, device=self.device)
        self.taken = torch.zeros(lanes, dtype=torch.int64, device=self.device)
        self._taken_before_epoch = self.taken

    def begin(self, epoch: int) -> None:
        """From now on steps belong to this epoch, counted from 0."""
        self._epoch, self._taken_before_epoch = epoch, self.taken.clone()
        self._tables.clear()
        self._key_tables.clear()

    def take(self, lanes: Lanes) -> None:
        """Count one more step of these lanes."""
        self._gradient = 0
        if isinstance(lanes, slice):
            self.taken[lanes].add_(1)
        else:
            mixing.index_copy(self.taken, lanes, self.taken[lanes] + 1)

    def uniform(self, lanes: Lanes, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers in [0, 1), ``[a, *shape]``, for the next step of these lanes.

        Raises:
            ValueError: One purpose is asked for two shapes in an epoch.
        """
        if purpose not in self._tables:
            # For a whole epoch: one transfer instead of one a step.
            table = self._table(purpose, shape).float()
            self._tables[purpose] = mixing.move_to_device(table, self.device)
        table = self._tables[purpose]
        if table.shape[2:] != shape:
            raise ValueError(
                f"uniform numbers for '{purpose}' have shape {list(table.shape[2:])} in this "
                f"epoch and cannot be {list(shape)}; name another purpose"
            )
        return self._of_step(table, lanes)

    def keys(self, lanes: Lanes) -> Tensor:
        """Keys of the model's random layers, int32 ``[a, layers, 2]``, for the next
        gradients that these lanes take in their next step.
        """
        if self._gradient not in self._key_tables:
            table = self._drawn_keys(self._gradient)
            self._key_tables[self._gradient] = mixing.move_to_device(table, self.device)
        table = self._key_tables[self._gradient]
        self._gradient += 1
        return self._of_step(table, lanes)

    def _of_step(self, table: Tensor, lanes: Lanes) -> Tensor:
        """Return the entries of a table ``[L, steps of the epoch, …]`` for the lanes'
        next step.
        """
        steps_in_epoch = self.taken[lanes] - self._taken_before_epoch[lanes]
        return table[self._all_lanes[lanes], steps_in_epoch]

    def _drawn_keys(self, gradient: int) -> Tensor:
        """Draw an epoch's keys for one gradient of each step, int32 ``[L, most steps,
        layers, 2]``.
        """
        shape = len(self.client_keys), max(self.steps), self.layers, 2
        table = np.zeros(shape, np.int32)
        for row, key, steps in zip(table, self.client_keys, self.steps, strict=True):
            place = self.phase, *key, self._epoch, gradient
            generator = randomness.generator(self.seed, "layers", *place)
            row[:steps] = generator.integers(
                np.iinfo(np.int32).min,
                np.iinfo(np.int32).max,
                (steps, self.layers, 2),
                np.int32,
                endpoint=True,
            )
        return torch.from_numpy(table)

    def _table(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Draw an epoch's part of ``Fleet.uniform``, float64 ``[L, most steps,
        *shape]``.
        """
        numbers_per_step = int(np.prod(shape, dtype=np.int64))
        table = np.zeros((len(self.client_keys), max(self.steps), *shape))
        for row, key, steps in zip(table, self.client_keys, self.steps, strict=True):
            count = steps * numbers_per_step
            drawn = randomness.uniform(
                self.seed,
                "uniform",
                purpose,
                *key,
                skip=self._epoch * count,
                count=count,
            )
            row[:steps] = drawn.reshape(steps, *shape)
        return torch.from_numpy(table)


@dataclass
class StepContext:
    """Argument of a method's ``step(context)``: ``a`` lanes with their next mini-batch
    or batches.

    Rows cover just the columns that are trained, ``[a, width]``.

    Attributes:
        variables: the method's tensors ``[a, …]`` by name; a step changes one by
            assigning a new tensor.
        index: how many steps each lane did before in this training, int64 [a].
    """

    variables: MutableMapping[str, Tensor]
    index: Tensor
    _lanes: Lanes
    _batches: list[Batch]
    _session: Session
    _optimizer: Optimizer
    _random: StepRandom
    _losses: Tensor = field(default_factory=lambda: torch.zeros(2))
    # The models' own rows, while the models still are where a gradient was taken last.
    _model_rows: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """Losses and data terms [a, 2] of the last gradient that was taken, which count
        as the step's.
        """
        return self._losses

    def rows(self) -> Tensor:
        """Copy the trained columns of the lanes' models, ``[a, width]``."""
        if self._model_rows is not None:
            return self._model_rows.clone()
        return self._flat(self._weights())

    def set_rows(self, rows: Tensor) -> None:
        """Replace the trained columns of the lanes' models by ``rows`` [a, width]."""
        self._model_rows = None
        self._put(rows)

    def _restore_models(self) -> None:
        """Give the models their own rows again if a gradient was taken elsewhere and
        nothing came after it.

        Whatever reads or changes the models calls it first, and the fleet after each
        step.
        """
        if self._model_rows is not None:
            self.set_rows(self._model_rows)

    def optimizer_step(self, direction: Tensor) -> None:
        """Do one step of the experiment's optimiser with ``direction`` [a, width] as
        the gradient.
        """
        self._restore_models()
        self._optimizer.step(self._lanes, self._split(direction))

    def gradient(self, rows: Tensor | None = None, batch: int = 0) -> Tensor:
        """Return the gradient of the loss on a mini-batch, ``[a, width]``.

        Args:
            rows: where it is taken, ``[a, width]``; by default at the lanes' models.
            batch: which of the step's mini-batches. Wherever it is taken, batch norm
                moves the statistics of the model that is trained, once a call.
        """
        if rows is None:
            self._restore_models()
        else:
            if self._model_rows is None:
                self._model_rows = self.rows()
            self._put(rows)
        return self._flat(self._gradients(batch))

    def regulariser(self, terms: Tensor) -> None:
        """Add a term [a] to the objective of the step. It counts in ``losses`` and not
        in their data terms.
        """
        self._losses = add_terms(self._losses, terms)

    def apply_elementwise(
        self,
        function: Callable[..., object],
        *others: Tensor,
        batch: int = 0,
        clip: bool = False,
    ) -> None:
        """Take the gradient on a mini-batch at the lanes' models and change these by
        ``function``.

        It is called with ``(rows, gradient, *others)`` and changes the rows in place, and
        nothing else. What becomes of a number may depend on those at the same place
        alone, so that the function can be given a layer at a time, in any shape,
        without putting whole rows together first.

        Args:
            function: changes rows in place, element by element.
            others: ``[a, width]`` each.
            batch: which of the step's mini-batches.
            clip: whether each lane's whole gradient is first scaled to a norm of at
                most ``training.clip``, where that is set.
        """
        self._restore_models()
        gradients = self._gradients(batch)
        if clip:
            directions = [gradients[name] for name in self._session.work.trained]
            clipped = self._optimizer.clipped(directions)
            gradients = dict(zip(self._session.work.trained, clipped, strict=True))
        if self._losses.is_cuda:  # few large operations
            rows = self.rows()
            function(rows, self._flat(gradients), *others)
            self.set_rows(rows)
            return
        others_by_name = [self._split(other) for other in others]
        for name, weights in self._weights().items():
            layers = [parts[name] for parts in others_by_name]
            function(weights, gradients[name], *layers)
            if isinstance(self._lanes, Tensor):  # indices gave a copy
                mixing.index_copy(
                    self._session.work.tensors[name], self._lanes, weights
                )

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), ``[a, *shape]``, keyed by purpose, round, client
        and step.

        They are ``fleet.uniform(purpose, steps, *shape)`` at ``index``.

        Raises:
            ValueError: One purpose is asked for two shapes in an epoch.
        """
        return self._random.uniform(self._lanes, purpose, shape)

    def _gradients(self, batch: int) -> Tensors:
        """Return the gradients by name at the current models. The next call overwrites
        them.
        """
        gradients, self._losses = self._session.gradients(
            self._lanes, self._batches[batch], self.variables
        )
        return gradients

    def _weights(self) -> Tensors:
        """Return the lanes' trained tensors ``[a, …]`` by name. They are copies where
        lanes are indices, else views.
        """
        tensors = self._session.work.tensors
        return {name: tensors[name][self._lanes] for name in self._session.work.trained}

    def _put(self, rows: Tensor) -> None:
        if rows.is_cuda and isinstance(self._lanes, slice):
            weights = list(self._weights().values())
            if all(part.is_contiguous() for part in weights):
                # Flat they are views, which one launch writes all at once. CUDA's
                # kernel takes any rows without gaps for rows one after the other.
                flat = [part.flatten(1) for part in weights]
                widths = [part.shape[1] for part in flat]
                torch.split_with_sizes_copy(rows.contiguous(), widths, dim=1, out=flat)
                return
        for name, part in self._split(rows).items():
            mixing.index_copy(self._session.work.tensors[name], self._lanes, part)

    def _flat(self, tensors: Tensors) -> Tensor:
        parts = [tensors[name].flatten(1) for name in self._session.work.trained]
        return torch.cat(parts, dim=1)

    def _split(self, rows: Tensor) -> Tensors:
        trained = self._session.work.trained
        shapes = [self._session.work.tensors[name].shape[1:] for name in trained]
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        return {
            name: part.reshape(-1, *shape)
            for name, part, shape in zip(trained, parts, shapes, strict=True)
        }
