"""Context of a method's own training step.

``StepContext`` gives a step access to models, gradients and random numbers, and
``take_step`` takes the step. ``StepRandom`` draws the random numbers. ``training.py``
loops over the mini-batches.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.execution import Session
from hpcfl.clients.losses import Batch, Lanes, Tensors, add_terms
from hpcfl.clients.optimizers import Optimizer
from hpcfl.rows import mixing, randomness


@dataclass
class StepRandom:
    """Random numbers and keys of random layers for the steps of a chunk's lanes.

    It also counts the steps that each lane has taken.

    Attributes:
        seed: seed of the experiment.
        client_keys: round and id of each lane's client.
        steps: number of steps of each lane in an epoch.
        device: device of the results.
        phase: phase of the training.
        layers: number of random layers of the model.
        taken: number of steps that each lane has taken in this training, int64 [L].
    """

    seed: int
    client_keys: list[tuple[int, int]]
    steps: list[int]
    device: torch.device
    phase: str
    layers: int

    def __post_init__(self) -> None:
        """Begin at the first step of the first epoch."""
        self._epoch = 0
        self._gradient = 0  # number of gradients with keys in the current step
        self._tables: dict[str, Tensor] = {}
        self._key_tables: dict[int, Tensor] = {}
        count = len(self.client_keys)
        self._all_lanes = torch.arange(count, device=self.device)
        self.taken = torch.zeros(count, dtype=torch.int64, device=self.device)
        self._taken_before_epoch = self.taken

    def begin(self, epoch: int) -> None:
        """Begin an epoch, counted from 0."""
        self._epoch, self._taken_before_epoch = epoch, self.taken.clone()
        self._tables.clear()
        self._key_tables.clear()

    def take(self, lanes: Lanes) -> None:
        """Count one step of these lanes."""
        self._gradient = 0
        if isinstance(lanes, slice):
            self.taken[lanes].add_(1)
        else:
            mixing.index_copy(self.taken, lanes, self.taken[lanes] + 1)

    def uniform(self, lanes: Lanes, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Return numbers in [0, 1), ``[a, *shape]``, for the next step of some lanes.

        Args:
            lanes: lanes that take the step.
            purpose: purpose in the key of the numbers.
            shape: shape of one lane's numbers.

        Raises:
            ValueError: Two shapes are requested for one purpose in an epoch.
        """
        if purpose not in self._tables:
            # The table has all steps of the epoch, for a single transfer.
            table = self._draw_table(purpose, shape).float()
            self._tables[purpose] = mixing.move_to_device(table, self.device)
        table = self._tables[purpose]
        if table.shape[2:] != shape:
            raise ValueError(
                f"uniform numbers for '{purpose}' have shape {list(table.shape[2:])} in this "
                f"epoch and cannot be {list(shape)}; name another purpose"
            )
        return self._select_step(table, lanes)

    def keys(self, lanes: Lanes) -> Tensor:
        """Return keys of the model's random layers, int32 ``[a, layers, 2]``.

        Each call in a step gives the keys for another gradient.
        """
        if self._gradient not in self._key_tables:
            table = self._draw_keys(self._gradient)
            self._key_tables[self._gradient] = mixing.move_to_device(table, self.device)
        table = self._key_tables[self._gradient]
        self._gradient += 1
        return self._select_step(table, lanes)

    def _select_step(self, table: Tensor, lanes: Lanes) -> Tensor:
        """Return the entries of a table ``[L, steps, …]`` for the lanes' next step."""
        steps_in_epoch = self.taken[lanes] - self._taken_before_epoch[lanes]
        return table[self._all_lanes[lanes], steps_in_epoch]

    def _draw_keys(self, gradient: int) -> Tensor:
        """Draw an epoch's keys for one gradient of each step.

        The result is int32 ``[L, steps, layers, 2]`` for the most steps of a lane.

        Args:
            gradient: number of the gradient within its step.
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

    def _draw_table(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Draw an epoch's uniform numbers, float64 ``[L, steps, *shape]``.

        The second dimension has the most steps of a lane.
        """
        numbers_per_step = int(np.prod(shape, dtype=np.int64))
        # The usual phase is not in the key, so that numbers equal those of the fleet.
        phase = () if self.phase == "train" else (self.phase,)
        table = np.zeros((len(self.client_keys), max(self.steps), *shape))
        for row, key, steps in zip(table, self.client_keys, self.steps, strict=True):
            count = steps * numbers_per_step
            drawn = randomness.uniform(
                self.seed,
                "uniform",
                purpose,
                *phase,
                *key,
                skip=self._epoch * count,
                count=count,
            )
            row[:steps] = drawn.reshape(steps, *shape)
        return torch.from_numpy(table)


@dataclass
class StepContext:
    """Argument of a method's ``step(context)``: ``a`` lanes and their mini-batches.

    Rows contain only the trained columns, ``[a, width]``.

    Attributes:
        variables: the method's tensors ``[a, …]`` by name, which a step may assign or
            change in place.
        index: number of steps that each lane took before in this training, int64 [a].
    """

    variables: MutableMapping[str, Tensor]
    index: Tensor
    _lanes: Lanes
    _batches: list[Batch]
    _session: Session
    _optimizer: Optimizer
    _random: StepRandom
    _losses: Tensor
    # The models' own rows while the models hold other rows for a gradient; else None.
    _model_rows: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """Losses and data terms [a, 2] of the last gradient; zero before the first."""
        return self._losses

    def rows(self) -> Tensor:
        """Copy the trained columns of the lanes' models, ``[a, width]``."""
        if self._model_rows is not None:
            return self._model_rows.clone()
        return self._flatten(self._get_weights())

    def set_rows(self, rows: Tensor) -> None:
        """Replace the trained columns of the lanes' models by ``rows`` [a, width]."""
        self._model_rows = None
        self._put(rows)

    def _restore_models(self) -> None:
        """Restore the models' own rows after a gradient at other rows.

        Every method that reads or changes the models calls it first, and ``take_step``
        calls it after the step.
        """
        if self._model_rows is not None:
            self.set_rows(self._model_rows)

    def optimizer_step(self, direction: Tensor) -> None:
        """Take a step of the optimiser with ``direction`` [a, width] as gradient."""
        self._restore_models()
        self._optimizer.step(self._lanes, self._split(direction))

    def descend(self, rate: float, batch: int = 0) -> None:
        """Take a plain step of gradient descent, without the optimiser.

        Args:
            rate: size of the step.
            batch: index of the mini-batch within the step.
        """
        self.apply_elementwise(
            lambda rows, gradient: rows.sub_(rate * gradient), batch=batch
        )

    def gradient(self, rows: Tensor | None = None, batch: int = 0) -> Tensor:
        """Return the gradient of the loss on a mini-batch, ``[a, width]``.

        Every call updates the batch-norm statistics of the trained model once, also if
        ``rows`` are given.

        Args:
            rows: trained columns at which the gradient is taken, ``[a, width]``; by
                default the lanes' models.
            batch: index of the mini-batch within the step.
        """
        if rows is None:
            self._restore_models()
        else:
            if self._model_rows is None:
                self._model_rows = self.rows()
            self._put(rows)
        return self._flatten(self._gradients(batch))

    def regulariser(self, terms: Tensor) -> None:
        """Add a term [a] to the recorded objective of the step.

        The term is included in ``losses``, but not in their data terms. ``gradient``
        does not contain it, so the step itself must descend it.
        """
        self._losses = add_terms(self._losses, terms)

    def apply_elementwise(
        self,
        function: Callable[..., object],
        *others: Tensor,
        batch: int = 0,
        clip: bool = False,
    ) -> None:
        """Take the gradient at the lanes' models and update these by ``function``.

        The function is called with ``(rows, gradient, *others)``. It changes ``rows``
        in place and nothing else. Each result may depend only on the elements at the
        same position. The function can therefore be called for each layer, in any
        shape, without concatenating whole rows.

        Args:
            function: function that updates rows element by element.
            others: further arguments, ``[a, width]`` each.
            batch: index of the mini-batch within the step.
            clip: whether each lane's whole gradient is first scaled to a norm of at
                most ``training.clip``, if that key is set.
        """
        self._restore_models()
        gradients = self._gradients(batch)
        if clip:
            directions = [gradients[name] for name in self._session.work.trained]
            clipped = self._optimizer.clip(directions)
            gradients = dict(zip(self._session.work.trained, clipped, strict=True))
        if self._losses.is_cuda:  # few large operations
            rows = self.rows()
            _change(function, rows, self._flatten(gradients), *others)
            self.set_rows(rows)
            return
        others_by_name = [self._split(other) for other in others]
        for name, weights in self._get_weights().items():
            layers = [parts[name] for parts in others_by_name]
            _change(function, weights, gradients[name], *layers)
            if isinstance(self._lanes, Tensor):  # indices gave a copy
                mixing.index_copy(
                    self._session.work.tensors[name], self._lanes, weights
                )

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Return uniform numbers in [0, 1), ``[a, *shape]``, for this step.

        They are keyed by purpose, phase, round, client and step.

        In the phase "train" they equal ``fleet.uniform(purpose, steps, *shape)`` at
        ``index``.

        Raises:
            ValueError: Two shapes are requested for one purpose in an epoch.
        """
        return self._random.uniform(self._lanes, purpose, shape)

    def _gradients(self, batch: int) -> Tensors:
        """Return the gradients at the current models; the next call overwrites them."""
        gradients, self._losses = self._session.compute_gradients(
            self._lanes, self._batches[batch], self.variables
        )
        return gradients

    def _get_weights(self) -> Tensors:
        """Return the lanes' trained tensors ``[a, …]`` by name.

        They are views for a slice of lanes, copies for indices.
        """
        tensors = self._session.work.tensors
        return {name: tensors[name][self._lanes] for name in self._session.work.trained}

    def _put(self, rows: Tensor) -> None:
        if rows.is_cuda and isinstance(self._lanes, slice):
            weights = list(self._get_weights().values())
            if all(part.is_contiguous() for part in weights):
                # One launch writes all flattened views. CUDA's kernel reads ``rows`` as
                # contiguous memory whatever their strides.
                flat = [part[:, None].flatten(1) for part in weights]
                widths = [part.shape[1] for part in flat]
                torch.split_with_sizes_copy(rows.contiguous(), widths, dim=1, out=flat)
                return
        for name, part in self._split(rows).items():
            mixing.index_copy(self._session.work.tensors[name], self._lanes, part)

    def _flatten(self, tensors: Tensors) -> Tensor:
        parts = [
            tensors[name][:, None].flatten(1) for name in self._session.work.trained
        ]
        return torch.cat(parts, dim=1)

    def _split(self, rows: Tensor) -> Tensors:
        trained = self._session.work.trained
        shapes = [self._session.work.tensors[name].shape[1:] for name in trained]
        parts = rows.split([shape.numel() for shape in shapes], dim=1)
        return {
            name: part.reshape(-1, *shape)
            for name, part, shape in zip(trained, parts, shapes, strict=True)
        }


def take_step(step: Callable[[StepContext], None], context: StepContext) -> None:
    """Take a method's own step.

    Raises:
        TypeError: The step returns a value instead of changing the models.
    """
    returned: object = step(context)  # type: ignore[func-returns-value]
    if returned is not None:
        raise TypeError(
            "the step of fleet.train_by returns a value, which is lost; change the models "
            "by context.set_rows, and variables by context.variables"
        )
    context._restore_models()


def _change(function: Callable[..., object], rows: Tensor, *others: Tensor) -> None:
    """Call the function of ``apply_elementwise``.

    Raises:
        TypeError: It returns other rows instead of changing ``rows``.
    """
    returned = function(rows, *others)
    if returned is not None and returned is not rows:
        raise TypeError(
            "the function of apply_elementwise returns other rows, which are lost; change "
            "its first argument in place, such as by rows.sub_(…)"
        )
