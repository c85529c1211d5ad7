"""THE training loop: mini-batches of many clients side by side.

Clients train in *chunks* of at most ``Kernel.widest`` clients, whose places are the
lanes (``execution``). A chunk plans its epoch in advance (``batch_plan.py``);
``Chunk.train_epoch`` loops over the mini-batches, which ``MiniBatches`` draws
(``PoissonBatches`` with sample-level privacy). For each mini-batch the kernel computes
the lanes' gradients (``execution/kernel.py``), and the optimiser or the method's own
step (``step_context.py``) updates the weights.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import heads
from hpcfl.clients.batch_plan import (
    MOST_GRADIENTS,
    BatchRun,
    MiniBatches,
    TrainingClient,
    count_epoch_samples,
    count_pool,
    find_fewest_samples,
    order_by_length,
    plan_epoch,
)
from hpcfl.clients.execution import Kernel, Work
from hpcfl.clients.losses import (
    Batch,
    FrozenMode,
    Lanes,
    Loss,
    Tensors,
    add_terms,
    index_lanes,
)
from hpcfl.clients.optimizers import Optimizer
from hpcfl.clients.resources import Models, Resources
from hpcfl.clients.samples import choose_some
from hpcfl.clients.step_context import StepContext, StepRandom, take_step
from hpcfl.files import heartbeat
from hpcfl.rows import constants, mixing, randomness
from hpcfl.rows.declared import DeclaredTensors, Watch, describe_form

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy


@dataclass(frozen=True)
class Task:
    """A local training as a method requested it.

    ``TrainOptions`` and ``Fleet.train_by`` explain the other fields.

    Attributes:
        ids: client ids, [n].
        rounds: round of each client, [n].
        names: parameters to train, in the order of a row.
        pace: fraction of the epochs that each client completes, as in ``Fleet``.
        proximal: strength and anchors [n, P] of the proximal term.
        is_trial: whether the training is a trial outside the round's work.
        frozen_mode: mode of the layers without trained parameters.
        step: method's own step; None for a step of the optimiser on the loss.
    """

    ids: np.ndarray
    rounds: np.ndarray
    loss: Loss
    names: list[str]
    epochs: int
    pace: np.ndarray | None
    steps: int | None = None
    batches: int = 1
    phase: str = "train"
    proximal: tuple[float, Tensor] | None = None
    share: float = 1.0
    only: Tensor | None = None
    is_trial: bool = False
    until: Callable[[Tensor, Tensors], Tensor] | None = None
    frozen_mode: FrozenMode = "evaluation"
    step: Callable[[StepContext], None] | None = None

    def count_step_samples(self, resources: Resources) -> int:
        """Return the number of samples in a full step of one client."""
        return resources.training.batch_size * self.batches

    def count_epochs(self, position: int) -> int:
        """Return the number of epochs of the client at a position.

        It is at least one, unless the task has no epochs.
        """
        if self.pace is None:
            return self.epochs
        return min(int(self.pace[position] * self.epochs) + 1, self.epochs)

    def choose_pool(
        self,
        seed: int,
        round: int,
        client: int,
        samples: np.ndarray,
    ) -> np.ndarray:
        """Select the samples that a client trains on: all, or a random share.

        Args:
            seed: seed of the experiment.
            round, client: keys of the draw.
            samples: positions of the client's samples, [n_i].
        """
        count = count_pool(len(samples), self.share)
        key = "subset", self.phase, round, client
        return choose_some(samples, count, seed, *key)


@dataclass(frozen=True)
class Trained:
    """Results of a local training of n clients, in new tensors.

    Attributes:
        rows: trained models, ``[n, P]``.
        buffers: their batch-norm statistics, ``[n, B]``.
        losses: each client's mean objective and mean data term in its last epoch,
            float64 [n, 2]; 0 for clients that did not train.
        changed: variables that the method's step assigned, ``[n, …]`` by name.
        sample_gradients: number of per-sample gradients that each client computed,
            int64 [n] on the host.
        noisy_batches: number of mini-batches from which each client computed g noisy
            gradients, in column g, int64 [n, MOST_GRADIENTS + 1] on the host; zeros
            without sample-level privacy.
    """

    rows: Tensor
    buffers: Tensor
    losses: Tensor
    changed: Tensors
    sample_gradients: np.ndarray
    noisy_batches: np.ndarray


def train(task: Task, resources: Resources, start: Models) -> Trained:
    """Train clients locally and return the results.

    The tensors of ``start`` do not change.

    Args:
        task: requested training.
        resources: kernel, samples and device of the rank.
        start: models of the clients before the training.

    Raises:
        RunFailure: The model has changed a constant buffer.
    """
    training = LocalTraining(task, resources, start)
    for group in training.list_groups():
        for attempt in training.kernel.attempt(group):
            with attempt as chunk:
                training.train_chunk(chunk)
    constants.refuse_changed(resources.kernel.module)
    return training.trained


@dataclass
class LocalTraining:
    """A local training of n clients, whose chunks train one after the other.

    Methods identify clients by their positions in ``task.ids``.

    Attributes:
        task, resources, start: as for ``train``.
        clients: samples, number of epochs and random key of each client.
        order: positions of the clients that train, sorted by ``order_by_length``.
        features_once: whether the layers below the head run only once, before the first
            epoch.
        trained: results so far.
    """

    task: Task
    resources: Resources
    start: Models

    def __post_init__(self) -> None:
        task, resources, start = self.task, self.resources, self.start
        if resources.privacy is not None:
            refuse_uncovered(task, resources.privacy)
        self.clients = self._list_clients()
        self.order = self._order_clients()
        self.features_once = bool(self.order) and _can_compute_features_once(
            task, resources, start.variables
        )
        clients, device = len(task.ids), resources.device
        self.trained = Trained(
            rows=_copy_rows(start.rows),
            buffers=start.buffers.clone(),
            losses=torch.zeros(clients, 2, dtype=torch.float64, device=device),
            changed={},
            sample_gradients=np.zeros(clients, np.int64),
            noisy_batches=np.zeros((clients, MOST_GRADIENTS + 1), np.int64),
        )

    def _list_clients(self) -> list[TrainingClient]:
        task, resources = self.task, self.resources
        size = task.count_step_samples(resources)
        has_statistics = resources.buffers.width > 0
        fewest = task.batches * find_fewest_samples(resources.training, has_statistics)
        rounds, ids = task.rounds.tolist(), task.ids.tolist()
        clients = []
        for position, (round, client) in enumerate(zip(rounds, ids, strict=True)):
            samples = resources.samples.train[client]
            pool = task.choose_pool(resources.setup.seed, round, client, samples)
            length = count_epoch_samples(len(pool), size, fewest, task.steps)
            epochs = task.count_epochs(position)
            clients.append(TrainingClient(client, round, pool, length, epochs))
        return clients

    def _order_clients(self) -> list[int]:
        trains = [client.length > 0 and client.epochs > 0 for client in self.clients]
        if self.task.only is not None:
            # One conversion to a list waits for the device only once.
            asked = self.task.only.tolist()
            trains = [one and other for one, other in zip(trains, asked, strict=True)]
        lengths = [client.length for client in self.clients]
        order = order_by_length(lengths, self.task.count_step_samples(self.resources))
        return [position for position in order if trains[position]]

    @property
    def kernel(self) -> Kernel:
        """The kernel that computes the gradients."""
        head = self.resources.head
        return head.kernel if head and self.features_once else self.resources.kernel

    def list_groups(self) -> list[list[int]]:
        """Return the positions of the clients that train, in groups.

        If the features are computed once, those of a group fit into memory.
        """
        if not self.features_once:
            return [self.order]
        pools = [client.pool for client in self.clients]
        return heads.group_by_features(self.resources, self.order, pools)

    def train_chunk(self, positions: list[int]) -> None:
        """Train clients side by side from their first mini-batch to their last.

        Args:
            positions: positions of the clients in ``task.ids``.
        """
        index = torch.tensor(positions, device=self.resources.device)
        chunk = self.start_chunk(positions, index)
        while chunk.begin_epoch():
            with chunk.seed_model():
                record = chunk.train_epoch()
            chunk.end_epoch(record)
        self.store(chunk, positions, index)

    def start_chunk(self, positions: list[int], index: Tensor) -> "Chunk":
        """Return the chunk for some clients.

        Args:
            positions: positions of the clients in ``task.ids``.
            index: the same positions as a tensor on the device.
        """
        resources, start = self.resources, self.start
        clients = [self.clients[position] for position in positions]
        if self.features_once:
            tensors = heads.copy_heads(resources, start.rows, index)
            pools = [client.pool for client in clients]
            models = Models(start.rows[index], start.buffers[index])
            resources, pools = heads.compute_features(resources, models, pools)
            of_features = zip(clients, pools, strict=True)
            clients = [client._replace(pool=pool) for client, pool in of_features]
        else:
            tensors = resources.stack_models(start, index)
        anchors: Tensors = {}
        if self.task.proximal is not None:
            _, rows = self.task.proximal
            anchors = resources.stack_rows(rows, index)
        privacy = resources.privacy
        make = MiniBatches if privacy is None else privacy.make_batches
        batches = make(
            kernel=resources.kernel,
            samples=resources.samples,
            seed=resources.setup.seed,
            phase=self.task.phase,
            size=self.task.count_step_samples(resources),
            clients=clients,
        )
        variables = start.variables.items()
        return Chunk(
            task=self.task,
            resources=resources,
            tensors=tensors,
            variables={name: value[index] for name, value in variables},
            anchors=anchors,
            batches=batches,
        )

    def store(self, chunk: "Chunk", positions: list[int], index: Tensor) -> None:
        """Store the results of a chunk.

        Args:
            chunk: chunk that has trained.
            positions, index: as for ``start_chunk``.
        """
        trained, tensors = self.trained, chunk.tensors
        # Assigned, not added: a chunk that did not fit into memory starts again.
        trained.sample_gradients[positions] = chunk.batches.sample_gradients
        trained.noisy_batches[positions] = chunk.batches.noisy_batches
        mixing.index_copy(trained.losses, index, chunk.finish())
        self.resources.setup.layout.write(tensors, trained.rows, index)
        self.resources.buffers.write(tensors, trained.buffers, index)
        for name in chunk.assigned:
            if name not in trained.changed:
                trained.changed[name] = self.start.variables[name].clone()
            mixing.index_copy(trained.changed[name], index, chunk.variables[name])


def refuse_uncovered(task: Task, privacy: "SamplePrivacy") -> None:
    """Raise UserError for a training that sample-level privacy does not cover."""
    uncovered = {
        "steps on several mini-batches": task.batches > 1,
        "a random share of the samples": task.share < 1,
        "training that ends by its loss ('until')": task.until is not None,
        "training of selected clients ('only')": task.only is not None,
    }
    for what, is_asked in uncovered.items():
        if is_asked:
            privacy.refuse(what)


def _can_compute_features_once(
    task: Task, resources: Resources, variables: Tensors
) -> bool:
    """Return whether the layers below the head need to run only once, before training."""
    if resources.head is None or resources.samples.augment:
        return False
    if set(task.names) & set(resources.setup.layout.list_members(("body",))):
        return False
    if resources.privacy is not None:
        return False  # Poisson mini-batches are drawn from samples
    if task.frozen_mode == "training" and resources.buffers.width:
        return False  # batch norm's outputs depend on the whole mini-batch
    return heads.can_use_features(
        resources=resources,
        names=task.names,
        loss=task.loss,
        variables=variables,
        frozen_mode=task.frozen_mode,
    )


def _copy_rows(rows: Tensor) -> Tensor:
    """Copy ``rows``, which may be larger than memory on a CPU."""
    return (
        mixing.get_large_memory().copy(rows)
        if rows.device.type == "cpu"
        else rows.clone()
    )


@dataclass
class Chunk:
    """Local training of clients side by side, from first to last mini-batch.

    Each client has a lane. Lanes are sorted by ``order_by_length``.

    Attributes:
        task: requested training.
        resources: resources of the rank; with ``features_once`` their samples are
            features, and their kernel trains heads.
        tensors: parameters and buffers of the lanes, ``[L, …]`` by name, which steps
            change in place.
        variables: variables of the lanes, ``[L, …]`` by name, which steps change in
            place.
        anchors: reference weights of the proximal term, ``[L, *shape]`` by name; empty
            without the term.
        batches: source of the mini-batches.
        clients: client of each lane, [L].
        assigned: names of the variables that steps have changed.
    """

    task: Task
    resources: Resources
    tensors: Tensors
    variables: Tensors
    anchors: Tensors
    batches: MiniBatches

    def __post_init__(self) -> None:
        task, resources, batches = self.task, self.resources, self.batches
        self.clients = batches.clients
        self.assigned: set[str] = set()
        self._optimizer = self._make_optimizer()
        layers = len(resources.kernel.random_layers)
        self._random: StepRandom | None = None
        if layers or task.step is not None:
            steps = [-(-client.length // batches.size) for client in self.clients]
            self._random = StepRandom(
                seed=resources.setup.seed,
                client_keys=batches.keys,
                steps=steps,
                device=resources.device,
                phase=task.phase,
                layers=layers,
            )
        work = Work(
            tensors=self.tensors,
            trained=task.names,
            loss=task.loss,
            variables=self.variables,
            frozen_mode=task.frozen_mode,
            keys=self._random.keys if self._random is not None and layers else None,
        )
        self._session = batches.begin(work)
        self._epoch = -1
        self._epochs = torch.tensor([client.epochs for client in self.clients])
        self._running = torch.ones(len(self.clients), dtype=torch.bool)
        shape = len(self.clients), 2
        self._losses = torch.zeros(shape, dtype=torch.float64, device=resources.device)
        # The losses of steps without gradients.
        self._no_losses = torch.zeros(shape, device=resources.device)
        # Each lane's objective in the last mini-batch of each epoch.
        self._last_objectives: list[Tensor] = []

    def _make_optimizer(self) -> Optimizer:
        resources, setup = self.resources, self.resources.setup
        strength, anchors = 0.0, {}
        if self.task.proximal is not None:
            strength, _ = self.task.proximal
        if strength:
            for name in self.task.names:
                anchors[name] = self.anchors[name]
        # All clients of a fleet have one learning rate.
        rounds = {client.round for client in self.clients}
        (rate,) = {setup.learning_rate(round) for round in rounds}
        moving = {name: self.tensors[name] for name in self.task.names}
        return Optimizer(
            training=resources.training,
            lr=rate,
            weights=moving,
            strength=strength,
            anchors=anchors,
        )

    def begin_epoch(self) -> bool:
        """Begin the next epoch. Return False if every lane has completed its epochs."""
        self._epoch += 1
        self._running &= self._epochs > self._epoch
        return self._epoch < self.task.epochs and bool(self._running.any())

    def train_epoch(self) -> Tensor:
        """Train one epoch of the running lanes; other lanes do not change.

        Returns:
            Each lane's mean objective and mean data term, and the objective of its last
            mini-batch, float64 [L, 3].
        """
        session = self._session
        orders, size = self.batches.draw(self._epoch)
        active_lanes = self._running.nonzero().flatten().tolist()
        blocks = plan_epoch([len(order) for order in orders], active_lanes, size)
        if self._random is not None:
            self._random.begin(self._epoch)
        index, counts = self._move_positions(blocks, orders)
        results: list[tuple[BatchRun, Tensor]] = []
        for run, lanes, batches in self._gather_batches(blocks, index):
            losses, calls = [], []
            samples_before = session.sample_count
            for batch in batches:
                calls_before = session.calls
                if self.task.step is None:
                    variables = self._select_variables(lanes)
                    gradients, loss = session.compute_gradients(lanes, batch, variables)
                    self._optimizer.step(lanes, gradients)
                else:
                    loss = self._step_by_method(lanes, batch)
                if self._random is not None:
                    self._random.take(lanes)
                calls.append(session.calls - calls_before)
                losses.append(loss)
                heartbeat.beat()
            samples = session.sample_count - samples_before
            self.batches.count(run, orders, calls, samples)
            results.append((run, torch.stack(losses)))
            # Free these samples before the next block is gathered.
            del batch, batches
        record = self._sum_losses(results, size)
        record[:, :2].div_(counts.clamp(min=1)[:, None])
        return record

    def end_epoch(self, record: Tensor) -> None:
        """Record the losses of an epoch and stop the lanes that are finished.

        Args:
            record: result of ``train_epoch``.
        """
        ran = mixing.move_to_device(self._running, self.resources.device)[:, None]
        self._losses = torch.where(ran, record[:, :2], self._losses)
        self._last_objectives.append(record[:, 2])
        if self.task.until is not None:
            history = torch.stack(self._last_objectives, dim=1)
            ended = self.task.until(history, self.variables)
            form, expected = describe_form(ended), describe_form(self._running)
            if form != expected:
                raise TypeError(
                    f"'until' returns {form}; expected {expected}, whether each lane stops"
                )
            self._running &= ~ended.cpu()

    def finish(self) -> Tensor:
        """Return each lane's mean objective and data term in its last epoch.

        The result is float64 [L, 2].

        The proximal term is evaluated once, for the trained model, because evaluating
        it in every step would cost a pass over all weights.
        """
        proximal = self._optimizer.compute_proximal_term()
        return self._losses if proximal is None else add_terms(self._losses, proximal)

    def _move_positions(
        self, blocks: list[list[BatchRun]], orders: list[np.ndarray]
    ) -> tuple[Tensor, Tensor]:
        """Move the epoch's sample positions to the device, in one asynchronous transfer.

        Args:
            blocks: blocks of the epoch.
            orders: samples of every lane in the order of the epoch.

        Returns:
            The positions of all runs in order, and the number of samples of each lane.
        """
        numbers = [run.positions(orders).ravel() for block in blocks for run in block]
        lengths = [len(order) for order in orders]
        on_host = torch.from_numpy(np.concatenate([*numbers, lengths]))
        on_device = mixing.move_to_device(on_host, self.resources.device)
        index, counts = on_device.tensor_split([-len(lengths)])
        return index, counts

    def _select_variables(self, lanes: Lanes) -> Tensors:
        """Return the variables of some lanes by name, views for a slice."""
        return {name: value[lanes] for name, value in self.variables.items()}

    def _step_by_method(self, lanes: Lanes, batch: Batch) -> Tensor:
        """Take the method's own step on the lanes' mini-batches.

        Returns:
            The lanes' objectives and data terms, [a, 2].
        """
        assert self.task.step is not None and self._random is not None
        given = self._select_variables(lanes)
        watch = Watch(given)
        context = StepContext(
            variables=DeclaredTensors(given, "context.variables", "fleet.train_by"),
            # a step may keep a reference to it
            index=self._random.taken[lanes].clone(),
            _lanes=lanes,
            _batches=batch.split(self.task.batches),
            _session=self._session,
            _optimizer=self._optimizer,
            _random=self._random,
            _losses=self._no_losses[: len(batch.y)],
        )
        take_step(self.task.step, context)
        changed = watch.end()
        for name, value in context.variables.items():
            if value is not given[name] or name in changed:
                mixing.index_copy(self.variables[name], lanes, value)
                self.assigned.add(name)
        return context.losses

    def _gather_batches(
        self, blocks: list[list[BatchRun]], index: Tensor
    ) -> Iterator[tuple[BatchRun, Lanes, list[Batch]]]:
        """Yield runs, lanes and mini-batches, ``x`` [a, size, …] and ``y`` [a, size].

        Args:
            blocks: blocks of the epoch; the samples of a block are gathered at once.
            index: positions of the samples, in order.
        """
        for block in blocks:
            sizes = [run.samples for run in block]
            of_block, index = index.tensor_split([sum(sizes)])
            x, y = self.batches.take(of_block)
            parts = zip(block, x.split(sizes), y.split(sizes), strict=True)
            del x, y
            for run, x_of_run, y_of_run in parts:
                lanes = index_lanes(run.lanes, self.resources.device)
                yield run, lanes, _cut(run, x_of_run, y_of_run)

    def _sum_losses(self, results: list[tuple[BatchRun, Tensor]], size: int) -> Tensor:
        """Return each lane's sums over the samples of an epoch, and its last objective.

        Args:
            results: runs in order, with the objectives and data terms of their batches,
                [batches, a, 2].
            size: number of samples in a full mini-batch.

        Returns:
            The sums of objectives and data terms, and the last batch's objective,
            float64 [L, 3].
        """
        device = self.resources.device
        record = torch.zeros(len(self.clients), 3, dtype=torch.float64, device=device)
        # A lane has at most one smaller last batch, so all of these form one group.
        groups = [[result] for result in results if result[0].size == size]
        last_batches = results[len(groups) :]
        if last_batches:
            groups.append(last_batches)
        for group in groups:
            numbers = [(lane, run.size) for run, _ in group for lane in run.lanes]
            lanes, sizes = mixing.move_to_device(torch.tensor(numbers), device).unbind(
                dim=1
            )
            losses = torch.cat([losses for _, losses in group], dim=1).to(record)
            # A sequential sum in double precision is independent of the block size.
            terms = torch.cat([record[lanes, :2][None], losses * sizes[:, None]])
            sums = terms.cumsum(dim=0)[-1]
            last_objectives = losses[-1, :, :1]
            columns = torch.cat([sums, last_objectives], dim=1)
            mixing.index_copy(record, lanes, columns)
        return record

    def seed_model(self) -> AbstractContextManager[None]:
        """Seed random draws of the model itself by client and epoch, in a block.

        Layers with keyed draws are unaffected. A model with draws of its own trains one
        client at a time, because the lanes of one call would share the generator.
        """
        if self.resources.kernel.widest > 1:
            return nullcontext()
        (client,) = self.clients
        key = self.task.phase, client.round, client.id, self._epoch
        return randomness.seeded(self.resources.setup.seed, "model", *key)


def _cut(run: BatchRun, x: Tensor, y: Tensor) -> list[Batch]:
    """Split a run's samples ``x`` [a·batches·size, …] and ``y`` into its mini-batches."""
    count = len(run.lanes)
    span = run.batches * run.size
    # A single lane uses slices of the gathered block, which keep its memory layout.
    x = x[None] if count == 1 else x.view(count, span, *x.shape[1:])
    y = y.view(count, span)
    parts = zip(x.split(run.size, dim=1), y.split(run.size, dim=1), strict=True)
    return [Batch(*part) for part in parts]
