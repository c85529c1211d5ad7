"""THE training loop: mini-batches of many clients, each client an independent lane.

Clients train in *chunks*, as many side by side as the kernel takes. A chunk's epoch is
planned beforehand (``batch_plan.py``); ``Chunk.train_epoch`` is the loop over its mini-batches.
Each takes the lanes' gradients (``execution/kernel.py``) and a step of the optimiser, or
the method's own step (``step_context.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import heads
from hpcfl.clients.batch_plan import (
    BatchPlan,
    BatchRun,
    epoch_length,
    fewest_samples,
    order_by_length,
    plan_epoch,
    pool_size,
)
from hpcfl.clients.execution import Work
from hpcfl.clients.losses import (
    Batch,
    Frozen,
    Lanes,
    Loss,
    Tensors,
    index_lanes,
    regularised,
)
from hpcfl.clients.optimizers import Optimizer, Proximal
from hpcfl.clients.resources import Resources
from hpcfl.clients.step_context import StepContext, StepRandom
from hpcfl.files import heartbeat
from hpcfl.rows import constants, mixing, randomness
from hpcfl.rows.declared import DeclaredTensors


@dataclass(frozen=True)
class Task:
    """A local training as a method asked for it; ``Fleet.train`` and ``train_by``
    explain the fields.

    Attributes:
        rounds: the round of each client, [n].
    """

    rounds: np.ndarray
    loss: Loss
    names: list[str]  # the parameters that move, in the order of a row
    epochs: int
    pace: np.ndarray | None = None
    steps: int | None = None
    batches: int = 1
    phase: str = "train"
    proximal: tuple[float, Tensor] | None = None  # the strength, and anchors [n, P]
    share: float = 1.0
    only: Tensor | None = None
    trial: bool = False  # whether it is no part of the round's work
    until: Callable[[Tensor, Tensors], Tensor] | None = None
    frozen: Frozen = "evaluation"  # the mode of layers of which nothing is trained
    # None: a step of the optimiser on the loss
    step: Callable[[StepContext], None] | None = None

    def epochs_of(self, clients: Sequence[int]) -> Tensor:
        """Return the epochs of the clients at these positions, int64 [L]. A client does
        at least one of several.
        """
        if self.pace is None:
            return torch.full((len(clients),), self.epochs)
        whole_epochs = torch.from_numpy(self.pace[clients] * self.epochs).long()
        return whole_epochs.add(1).clamp(max=self.epochs)

    def pool(
        self,
        seed: int,
        round: int,
        client: int,
        samples: np.ndarray,
    ) -> np.ndarray:
        """Select the samples of a client's ``samples`` [n_i] that it trains on: all, or
        a random share for the phase.
        """
        if self.share >= 1:
            return samples
        count = pool_size(len(samples), self.share)
        order = randomness.permutation(
            len(samples),
            seed,
            "subset",
            self.phase,
            round,
            client,
        )
        chosen: np.ndarray = samples[np.sort(order[:count])]
        return chosen


@dataclass(frozen=True)
class Trained:
    """Results of a local training of n clients, in new tensors.

    Attributes:
        rows: ``[n, P]``.
        buffers: their batch-norm statistics ``[n, B]``.
        losses: each client's mean objective and its data term in its last epoch,
            float64 [n, 2]; 0 for those that did not train.
        changed: the variables that the method's step assigned, ``[n, …]`` by name.
        sample_gradients: how many gradients of samples each client computed, int64 [n]
            on the host.
    """

    rows: Tensor
    buffers: Tensor
    losses: Tensor
    changed: Tensors
    sample_gradients: np.ndarray

    def keep_variables(
        self,
        names: set[str],
        trained: Tensors,
        before: Tensors,
        lanes: Tensor,
    ) -> None:
        """Keep the variables of some lanes that steps have assigned.

        Args:
            names: of these variables.
            trained: of the lanes, ``[L, …]`` by name.
            before: of all clients before the training, ``[n, …]`` by name.
            lanes: positions of the lanes' clients, [L].
        """
        for name in names:
            changed = self.changed.setdefault(name, before[name].clone())
            mixing.index_copy(changed, lanes, trained[name])


def train(
    task: Task,
    resources: Resources,
    ids: np.ndarray,
    rows: Tensor,
    buffers: Tensor,
    variables: Tensors,
) -> Trained:
    """Train clients ``ids`` [n] from ``rows`` [n, P], ``buffers`` [n, B] and
    ``variables`` [n, …] by name.

    The given tensors do not change.
    """
    losses = torch.zeros(len(ids), 2, dtype=torch.float64, device=resources.device)
    trained = Trained(
        rows=_copy_rows(rows),
        buffers=buffers.clone(),
        losses=losses,
        changed={},
        sample_gradients=np.zeros(len(ids), np.int64),
    )
    pools = [
        task.pool(resources.seed, round, client, resources.samples.train[client])
        for round, client in zip(task.rounds.tolist(), ids.tolist(), strict=True)
    ]
    size = resources.training.batch_size * task.batches
    lengths = _epoch_lengths(task, resources, pools)
    # As a list: a device is waited for once.
    trains = [True] * len(ids) if task.only is None else task.only.tolist()
    order = [i for i in order_by_length(lengths, size) if lengths[i] and trains[i]]
    features_once = bool(order) and _can_compute_features_once(
        task, resources, variables
    )

    def start_chunk(positions: list[int], lanes: Tensor) -> Chunk:
        chunk_resources = resources
        chunk_pools = [pools[i] for i in positions]
        if features_once:
            chunk_resources, chunk_pools = heads.compute_features(
                resources, trained.rows[lanes], trained.buffers[lanes], chunk_pools
            )
            tensors = heads.copy_heads(resources, trained.rows, lanes)
        else:
            tensors = resources.stack_models(trained.rows, trained.buffers, lanes)
        clients = [
            Lane(int(ids[i]), int(task.rounds[i]), pool, lengths[i])
            for i, pool in zip(positions, chunk_pools, strict=True)
        ]
        proximal = None
        if task.proximal is not None:
            strength, anchors = task.proximal
            proximal = strength, anchors[lanes]
        return Chunk(
            task=task,
            resources=chunk_resources,
            clients=clients,
            epochs=task.epochs_of(positions),
            size=size,
            tensors=tensors,
            variables={name: value[lanes] for name, value in variables.items()},
            proximal=proximal,
        )

    def train_chunk(positions: list[int]) -> None:
        lanes = torch.tensor(positions, device=resources.device)
        chunk = start_chunk(positions, lanes)
        while chunk.begin_epoch():
            with chunk.drawn_by_model():
                record = chunk.train_epoch()
            chunk.end_epoch(record)
        mixing.index_copy(trained.losses, lanes, chunk.finish())
        # Assigned and not added: where memory did not hold the chunk, it begins anew.
        trained.sample_gradients[positions] = chunk.sample_gradients
        resources.setup.layout.write(chunk.tensors, trained.rows, lanes)
        resources.buffers.write(chunk.tensors, trained.buffers, lanes)
        trained.keep_variables(chunk.assigned, chunk.variables, variables, lanes)

    attempts = resources.attempts(order)
    if features_once:
        attempts = heads.attempts(resources, order, pools)
    for attempt in attempts:
        with attempt:
            train_chunk(attempt.clients)
    constants.refuse_changed(resources.kernel.module)
    return trained


def _epoch_lengths(
    task: Task, resources: Resources, pools: list[np.ndarray]
) -> list[int]:
    """Return how many of its samples each client uses in an epoch, [n]."""
    size = resources.training.batch_size * task.batches
    fewest = task.batches * fewest_samples(
        resources.training, resources.buffers.width > 0
    )
    return [epoch_length(len(pool), size, fewest, task.steps) for pool in pools]


def _can_compute_features_once(
    task: Task, resources: Resources, variables: Tensors
) -> bool:
    """Return whether the layers below the head run once, before the first epoch."""
    if task.frozen == "training" and resources.buffers.width:
        return False  # what batch norm makes of a sample depends on its mini-batch
    return heads.can_use_features(
        resources,
        task.names,
        task.loss,
        variables,
        task.frozen,
    )


def _copy_rows(rows: Tensor) -> Tensor:
    """Copy ``rows``, which on the CPU may be larger than memory."""
    return (
        mixing.large_memory().copy(rows) if rows.device.type == "cpu" else rows.clone()
    )


class Lane(NamedTuple):
    """A client of a chunk.

    Attributes:
        client: its id.
        round: which keys its draws.
        pool: the positions of its samples.
        length: how many of them an epoch uses.
    """

    client: int
    round: int
    pool: np.ndarray
    length: int


class Chunk:
    """Clients side by side, a lane each, sorted by ``order_by_length``, from their first
    mini-batch to their last.

    Attributes:
        clients: of each lane.
        epochs: how many epochs each lane does at most, int64 [L].
        size: samples of a full step of one lane.
        tensors, variables: of the lanes, ``[L, …]`` by name; steps change them in place.
        assigned: the names of the variables that steps have changed.
        sample_gradients: how many gradients of samples each lane computed, int64 [L].
    """

    def __init__(
        self,
        task: Task,
        resources: Resources,
        clients: list[Lane],
        epochs: Tensor,
        size: int,
        tensors: Tensors,
        variables: Tensors,
        proximal: tuple[float, Tensor] | None,
    ):
        """``proximal`` is the strength, and the lanes' anchors [L, P]."""
        self.task, self.resources, self.clients = task, resources, clients
        self.epochs, self.size = epochs, size
        self.tensors, self.variables = tensors, variables
        self.assigned: set[str] = set()
        self.sample_gradients = np.zeros(len(clients), np.int64)
        kernel, setup = resources.kernel, resources.setup
        anchor = None
        if proximal is not None:
            strength, rows = proximal
            anchor = Proximal(strength, kernel.lay_out(setup.layout.stack(rows)))
        # all clients of a fleet have one learning rate
        (rate,) = {setup.learning_rate(lane.round) for lane in clients}
        self._optimizer = Optimizer(
            resources.training,
            rate,
            {name: tensors[name] for name in task.names},
            anchor,
        )
        layers = len(kernel.random_layers)
        self._random = StepRandom(
            seed=resources.seed,
            rounds=[lane.round for lane in clients],
            clients=[lane.client for lane in clients],
            steps=[-(-lane.length // size) for lane in clients],
            device=resources.device,
            phase=task.phase,
            layers=layers,
        )
        self._session = kernel.begin(
            Work(
                tensors=tensors,
                trained=task.names,
                loss=task.loss,
                variables=variables,
                frozen=task.frozen,
                keys=self._random.keys if layers else None,
            )
        )
        self._counts_steps = bool(layers) or task.step is not None
        self._epoch = -1
        self._running = torch.ones(len(clients), dtype=torch.bool)
        self._losses = torch.zeros(
            len(clients), 2, dtype=torch.float64, device=resources.device
        )
        # each lane's objective in the last mini-batch, by epoch
        self._last_objectives: list[Tensor] = []

    def begin_epoch(self) -> bool:
        """Begin the next epoch; return False where no lane does one more."""
        self._epoch += 1
        self._running &= self.epochs > self._epoch
        return self._epoch < self.task.epochs and bool(self._running.any())

    def train_epoch(self) -> Tensor:
        """Train the epoch of the lanes that run; the others stay as they are.

        Returns:
            Each lane's mean objective and data term, and the last mini-batch's
            objective, float64 [L, 3].
        """
        epoch = self._epoch
        orders = self._orders(epoch)
        lengths = [len(order) for order in orders]
        active_lanes = [
            lane for lane, runs in enumerate(self._running.tolist()) if runs
        ]
        plan = plan_epoch(lengths, active_lanes, self.size)
        self._random.begin(epoch)
        # One transfer for the whole epoch, and one for which the host does not wait.
        numbers = np.concatenate([plan.positions(orders), lengths])
        on_device = mixing.move_to_device(
            torch.from_numpy(numbers), self.resources.device
        )
        index, counts = on_device.tensor_split([-len(lengths)])
        results: list[tuple[BatchRun, Tensor]] = []
        for run, lanes, batches in self._gather_batches(plan, index):
            losses = []
            counted_before = self._session.samples
            for batch in batches:
                if self.task.step is None:
                    variables = {key: of[lanes] for key, of in self.variables.items()}
                    gradients, loss = self._session.gradients(lanes, batch, variables)
                    self._optimizer.step(lanes, gradients)
                else:
                    loss = self._step_by_method(lanes, batch)
                if self._counts_steps:
                    self._random.take(lanes)
                losses.append(loss)
                heartbeat.beat()
            of_each_lane = self._session.samples - counted_before
            self.sample_gradients[run.lanes] += of_each_lane
            results.append((run, torch.stack(losses)))
            # Frees the samples before those of the next block are gathered.
            del batch, batches
        record = self._sum_losses(results)
        record[:, :2].div_(counts.clamp(min=1)[:, None])
        return record

    def end_epoch(self, record: Tensor) -> None:
        """Keep the losses of an epoch, and end the lanes that are done.

        record: the result of ``train_epoch``.
        """
        ran = mixing.move_to_device(self._running, self.resources.device)[:, None]
        self._losses = torch.where(ran, record[:, :2], self._losses)
        self._last_objectives.append(record[:, 2])
        if self.task.until is not None:
            history = torch.stack(self._last_objectives, dim=1)
            self._running &= ~self.task.until(history, self.variables).cpu()

    def finish(self) -> Tensor:
        """Return each lane's mean objective and data term in its last epoch, float64
        [L, 2].

        The proximal term is that of the trained model: in every step it would cost a
        pass over the models.
        """
        proximal = self._optimizer.proximal_term()
        return self._losses if proximal is None else regularised(self._losses, proximal)

    def _step_by_method(self, lanes: Lanes, batch: Batch) -> Tensor:
        """Take the method's own step on the lanes' mini-batches; return their
        objectives and data terms, [a, 2].
        """
        assert self.task.step is not None
        x_parts = batch.x.tensor_split(self.task.batches, dim=1)
        y_parts = batch.y.tensor_split(self.task.batches, dim=1)
        given = {name: value[lanes] for name, value in self.variables.items()}
        context = StepContext(
            variables=DeclaredTensors(given, "context.variables", "fleet.train_by"),
            index=self._random.taken[
                lanes
            ].clone(),  # a copy, because a step may keep it
            _lanes=lanes,
            _batches=[Batch(x, y) for x, y in zip(x_parts, y_parts, strict=True)],
            _session=self._session,
            _optimizer=self._optimizer,
            _random=self._random,
        )
        self.task.step(context)
        context._restore_models()
        for name, value in context.variables.items():
            if value is not given[name]:
                mixing.index_copy(self.variables[name], lanes, value)
                self.assigned.add(name)
        return context.losses.expand(len(batch.y), 2)

    def _gather_batches(
        self, plan: BatchPlan, index: Tensor
    ) -> Iterator[tuple[BatchRun, Lanes, list[Batch]]]:
        """Yield the runs of a plan with their lanes and mini-batches, ``x`` [a, size,
        …] and ``y`` [a, size] each.

        Args:
            plan: of the epoch.
            index: positions of its samples, in the order of the plan.
        """
        start = 0
        for block in plan.blocks:
            stop = start + sum(run.samples for run in block)
            yield from self._gather_block(block, index[start:stop])
            start = stop

    def _gather_block(
        self, block: list[BatchRun], index: Tensor
    ) -> Iterator[tuple[BatchRun, Lanes, list[Batch]]]:
        x, y = self.resources.samples.take(index)
        sizes = [run.samples for run in block]
        parts = zip(block, x.split(sizes), y.split(sizes), strict=True)
        for run, x_of_run, y_of_run in parts:
            self._count(run)
            lanes = index_lanes(run.lanes, self.resources.device)
            yield run, lanes, _cut(run, x_of_run, y_of_run)

    def _count(self, run: BatchRun) -> None:
        lane_steps = self.resources.lane_steps
        lanes = len(run.lanes)
        lane_steps.samples += run.samples
        lane_steps.needed += lanes * run.batches
        lane_steps.batched += run.batches
        lane_steps.computed += self._session.computed_lanes(lanes) * run.batches

    def _orders(self, epoch: int) -> list[np.ndarray]:
        """Return the positions of each lane's samples in this epoch, in order: of its
        shuffled pool as many as are used.
        """
        seed, samples = self.resources.seed, self.resources.samples
        keys = [
            (self.task.phase, lane.round, lane.client, epoch) for lane in self.clients
        ]
        sizes = [len(lane.pool) for lane in self.clients]
        shuffled = randomness.permutations(
            sizes, seed, [("shuffle", *key) for key in keys]
        )
        return [
            samples.vary(lane.pool[order[: lane.length]], seed, *key)
            for lane, order, key in zip(self.clients, shuffled, keys, strict=True)
        ]

    def _sum_losses(self, results: list[tuple[BatchRun, Tensor]]) -> Tensor:
        """Return each lane's two sums over the samples of an epoch, and the last batch's
        objective, float64 [L, 3].

        A lane has one smaller last batch at most, so that all of these are added at
        once.

        Args:
            results: runs in order, with the objectives and data terms of their batches,
                [batches, a, 2].
        """
        device = self.resources.device
        record = torch.zeros(len(self.clients), 3, dtype=torch.float64, device=device)
        groups = [[result] for result in results if result[0].size == self.size]
        last_batches = results[len(groups) :]
        if last_batches:
            groups.append(last_batches)
        for group in groups:
            numbers = [(lane, run.size) for run, _ in group for lane in run.lanes]
            lanes, sizes = mixing.move_to_device(torch.tensor(numbers), device).unbind(
                dim=1
            )
            losses = torch.cat([losses for _, losses in group], dim=1).to(record)
            # Added one by one in double precision: a sum may not depend on how many
            # steps a block holds.
            terms = torch.cat([record[lanes, :2][None], losses * sizes[:, None]])
            sums = terms.cumsum(dim=0)[-1]
            last_objectives = losses[-1, :, :1]
            numbers_of_lanes = torch.cat([sums, last_objectives], dim=1)
            mixing.index_copy(record, lanes, numbers_of_lanes)
        return record

    def drawn_by_model(self) -> AbstractContextManager[None]:
        """Seed a model's own draws by client and epoch in a block. Layers with keyed
        draws are not concerned.

        Clients side by side cannot draw in this way. A model with own draws trains its
        clients one after the other.
        """
        if self.resources.kernel.widest > 1:
            return nullcontext()
        (lane,) = self.clients
        key = self.task.phase, lane.round, lane.client, self._epoch
        return randomness.seeded(self.resources.seed, "model", *key)


def _cut(run: BatchRun, x: Tensor, y: Tensor) -> list[Batch]:
    """Split a run's samples ``x`` [a·batches·size, …], ``y`` into its mini-batches."""
    lanes = len(run.lanes)
    span = run.batches * run.size
    # One lane's batch is a slice of the gathered block, which keeps its memory layout.
    x = x[None] if lanes == 1 else x.view(lanes, span, *x.shape[1:])
    x_batches = x.split(run.size, dim=1)
    y_batches = y.view(lanes, span).split(run.size, dim=1)
    return [Batch(*parts) for parts in zip(x_batches, y_batches, strict=True)]
