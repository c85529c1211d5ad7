"""THE training loop: mini-batches of many clients, each client an independent lane.

Clients train in *chunks*, as many side by side as the kernel takes. A chunk's epoch is
planned beforehand (``batch_plan.py``); ``Chunk.train_epoch`` is the loop over its mini-batches.
Each takes the lanes' gradients (``execution/kernel.py``) and a step of the optimiser, or
the method's own step (``step_context.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import heads
from hpcfl.clients.batch_plan import (
    MOST_GRADIENTS,
    BatchPlan,
    BatchRun,
    epoch_length,
    fewest_samples,
    order_by_length,
    plan_epoch,
    pool_size,
)
from hpcfl.clients.execution import PIECE, Keys, Session, Work
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
from hpcfl.clients.resources import Attempt, Resources
from hpcfl.clients.step_context import StepContext, StepRandom
from hpcfl.errors import UserError
from hpcfl.files import heartbeat
from hpcfl.rows import constants, mixing, randomness
from hpcfl.rows.declared import DeclaredTensors

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy


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

    def step_size(self, resources: Resources) -> int:
        """Return the samples of a full step of one client."""
        return resources.training.batch_size * self.batches

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
class Start:
    """Clients before a local training.

    Attributes:
        ids: of the clients, [n].
        rows: their models, ``[n, P]``.
        buffers: their batch-norm statistics, ``[n, B]``.
        variables: what losses and steps read, ``[n, …]`` by name.
    """

    ids: np.ndarray
    rows: Tensor
    buffers: Tensor
    variables: Tensors


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
        noisy_batches: of how many mini-batches each client took g noisy gradients, in
            column g, int64 [n, MOST_GRADIENTS + 1] on the host; zeros without
            sample-level privacy.
    """

    rows: Tensor
    buffers: Tensor
    losses: Tensor
    changed: Tensors
    sample_gradients: np.ndarray
    noisy_batches: np.ndarray


def train(task: Task, resources: Resources, start: Start) -> Trained:
    """Train clients locally. The tensors of ``start`` do not change."""
    training = LocalTraining(task, resources, start)
    for attempt in training.attempts():
        with attempt:
            training.train_chunk(attempt.clients)
    constants.refuse_changed(resources.kernel.module)
    return training.trained


class LocalTraining:
    """A local training of n clients, whose chunks train one after the other.

    Clients are named by their positions in ``start.ids``.

    Attributes:
        pools: the samples that each client trains on.
        lengths: how many of them an epoch uses.
        order: the clients that train, sorted by ``order_by_length``.
        features_once: whether the layers below the head run once, before the first
            epoch.
        trained: the results so far.
    """

    def __init__(self, task: Task, resources: Resources, start: Start) -> None:
        self.task, self.resources, self.start = task, resources, start
        if resources.privacy is not None:
            refuse_uncovered(task, resources.privacy)
        self.pools = self._select_pools()
        fewest = fewest_samples(resources.training, resources.buffers.width > 0)
        self.lengths = self._count_used(task.batches * fewest)
        self.order = self._order_clients()
        self.features_once = bool(self.order) and _can_compute_features_once(
            task, resources, start.variables
        )
        clients, device = len(start.ids), resources.device
        self.trained = Trained(
            rows=_copy_rows(start.rows),
            buffers=start.buffers.clone(),
            losses=torch.zeros(clients, 2, dtype=torch.float64, device=device),
            changed={},
            sample_gradients=np.zeros(clients, np.int64),
            noisy_batches=np.zeros((clients, MOST_GRADIENTS + 1), np.int64),
        )

    def _select_pools(self) -> list[np.ndarray]:
        pools = []
        rounds, ids = self.task.rounds.tolist(), self.start.ids.tolist()
        for round, client in zip(rounds, ids, strict=True):
            samples = self.resources.samples.train[client]
            pools.append(self.task.pool(self.resources.seed, round, client, samples))
        return pools

    def _count_used(self, fewest: int) -> list[int]:
        size, steps = self.task.step_size(self.resources), self.task.steps
        return [epoch_length(len(pool), size, fewest, steps) for pool in self.pools]

    def _order_clients(self) -> list[int]:
        trains = [length > 0 for length in self.lengths]
        if self.task.only is not None:
            # As a list: a device is waited for once.
            asked = self.task.only.tolist()
            trains = [one and other for one, other in zip(trains, asked, strict=True)]
        size = self.task.step_size(self.resources)
        return [i for i in order_by_length(self.lengths, size) if trains[i]]

    def attempts(self) -> Iterator[Attempt]:
        """Yield attempts for as many clients as may train side by side."""
        if self.features_once:
            return heads.attempts(self.resources, self.order, self.pools)
        return self.resources.attempts(self.order)

    def train_chunk(self, positions: list[int]) -> None:
        """Train clients side by side from their first mini-batch to their last."""
        lanes = torch.tensor(positions, device=self.resources.device)
        chunk = self.start_chunk(positions, lanes)
        while chunk.begin_epoch():
            with chunk.drawn_by_model():
                record = chunk.train_epoch()
            chunk.end_epoch(record)
        # Assigned and not added: where memory did not hold the chunk, it begins anew.
        self.trained.sample_gradients[positions] = chunk.sample_gradients
        self.trained.noisy_batches[positions] = chunk.noisy_batches
        self.store(chunk, lanes)

    def start_chunk(self, positions: list[int], lanes: Tensor) -> "Chunk":
        """Return the chunk of clients; ``lanes`` are their positions on the device."""
        resources, trained = self.resources, self.trained
        pools = [self.pools[i] for i in positions]
        if self.features_once:
            tensors = heads.copy_heads(resources, trained.rows, lanes)
            resources, pools = heads.compute_features(
                resources, trained.rows[lanes], trained.buffers[lanes], pools
            )
        else:
            tensors = resources.stack_models(trained.rows, trained.buffers, lanes)
        anchors = None
        if self.task.proximal is not None:
            _, rows = self.task.proximal
            anchors = rows[lanes]
        variables = self.start.variables.items()
        models = LaneModels(
            tensors=tensors,
            variables={name: value[lanes] for name, value in variables},
            anchors=anchors,
        )
        return Chunk(self.task, resources, self.list_lanes(positions, pools), models)

    def list_lanes(
        self, positions: list[int], pools: list[np.ndarray]
    ) -> list["LaneClient"]:
        """Return the lanes of a chunk's clients, which have the samples ``pools``."""
        epochs = self.task.epochs_of(positions).tolist()
        lanes = []
        for place, position in enumerate(positions):
            lane = LaneClient(
                client=int(self.start.ids[position]),
                round=int(self.task.rounds[position]),
                pool=pools[place],
                length=self.lengths[position],
                epochs=epochs[place],
            )
            lanes.append(lane)
        return lanes

    def store(self, chunk: "Chunk", lanes: Tensor) -> None:
        """Store the results of a chunk whose clients have the positions ``lanes``."""
        trained, models = self.trained, chunk.models
        mixing.index_copy(trained.losses, lanes, chunk.finish())
        self.resources.setup.layout.write(models.tensors, trained.rows, lanes)
        self.resources.buffers.write(models.tensors, trained.buffers, lanes)
        for name in chunk.assigned:
            before = self.start.variables[name]
            changed = trained.changed.setdefault(name, before.clone())
            mixing.index_copy(changed, lanes, models.variables[name])


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
    """Return whether the layers below the head run once, before the first epoch."""
    if resources.privacy is not None:
        return False  # Poisson mini-batches are of samples
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


class LaneClient(NamedTuple):
    """A client of a chunk.

    Attributes:
        client: its id.
        round: which keys its draws.
        pool: the positions of its samples.
        length: how many of them an epoch uses.
        epochs: how many epochs it does at most.
    """

    client: int
    round: int
    pool: np.ndarray
    length: int
    epochs: int


@dataclass(frozen=True)
class LaneModels:
    """The models of a chunk's lanes; steps change the tensors in place.

    Attributes:
        tensors, variables: of the lanes, ``[L, …]`` by name.
        anchors: rows of the proximal term, [L, P]; None without one.
    """

    tensors: Tensors
    variables: Tensors
    anchors: Tensor | None


class Chunk:
    """Clients side by side, a lane each, sorted by ``order_by_length``, from their first
    mini-batch to their last.

    Attributes:
        lanes: the clients.
        models: of the lanes.
        size: samples of a full step of one lane.
        assigned: the names of the variables that steps have changed.
        sample_gradients: how many gradients of samples each lane computed, int64 [L].
        noisy_batches: as ``Trained`` has them, of the lanes.
    """

    def __init__(
        self,
        task: Task,
        resources: Resources,
        lanes: list[LaneClient],
        models: LaneModels,
    ) -> None:
        self.task, self.resources = task, resources
        self.lanes, self.models = lanes, models
        self.size = task.step_size(resources)
        self.assigned: set[str] = set()
        self.sample_gradients = np.zeros(len(lanes), np.int64)
        self.noisy_batches = np.zeros((len(lanes), MOST_GRADIENTS + 1), np.int64)
        self._optimizer = self._make_optimizer()
        layers = len(resources.kernel.random_layers)
        self._random = self._make_random(layers)
        self._session = self._begin_session(self._random.keys if layers else None)
        self._counts_steps = bool(layers) or task.step is not None
        self._epoch = -1
        self._epochs = torch.tensor([lane.epochs for lane in lanes])
        self._running = torch.ones(len(lanes), dtype=torch.bool)
        self._losses = torch.zeros(
            len(lanes), 2, dtype=torch.float64, device=resources.device
        )
        # each lane's objective in the last mini-batch, by epoch
        self._last_objectives: list[Tensor] = []

    def _begin_session(self, keys: Keys | None) -> Session:
        """Return what computes the lanes' gradients, with sample-level privacy noisy
        ones; ``keys``: as for ``Work``.
        """
        task, models, privacy = self.task, self.models, self.resources.privacy
        work = Work(
            tensors=models.tensors,
            trained=task.names,
            loss=task.loss,
            variables=models.variables,
            frozen=task.frozen,
            keys=keys,
        )
        if privacy is None:
            return self.resources.kernel.begin(work)
        readable = privacy.select_variables(models.variables)
        work = replace(work, variables=readable, clip=privacy.clip)
        return privacy.begin(
            self.resources.kernel.begin(work),
            seed=self.resources.seed,
            phase=task.phase,
            keys=[(lane.round, lane.client) for lane in self.lanes],
            expected=[min(self.size, len(lane.pool)) for lane in self.lanes],
        )

    def _make_optimizer(self) -> Optimizer:
        resources, setup = self.resources, self.resources.setup
        anchor = None
        if self.task.proximal is not None and self.models.anchors is not None:
            strength, _ = self.task.proximal
            rows = setup.layout.stack(self.models.anchors)
            anchor = Proximal(strength, resources.kernel.lay_out(rows))
        # all clients of a fleet have one learning rate
        rounds = {lane.round for lane in self.lanes}
        (rate,) = {setup.learning_rate(round) for round in rounds}
        moving = {name: self.models.tensors[name] for name in self.task.names}
        return Optimizer(resources.training, rate, moving, anchor)

    def _make_random(self, layers: int) -> StepRandom:
        return StepRandom(
            seed=self.resources.seed,
            rounds=[lane.round for lane in self.lanes],
            clients=[lane.client for lane in self.lanes],
            steps=[-(-lane.length // self.size) for lane in self.lanes],
            device=self.resources.device,
            phase=self.task.phase,
            layers=layers,
        )

    def begin_epoch(self) -> bool:
        """Begin the next epoch; return False where no lane does one more."""
        self._epoch += 1
        self._running &= self._epochs > self._epoch
        return self._epoch < self.task.epochs and bool(self._running.any())

    def train_epoch(self) -> Tensor:
        """Train the epoch of the lanes that run; the others stay as they are.

        Returns:
            Each lane's mean objective and data term, and the last mini-batch's
            objective, float64 [L, 3].
        """
        epoch = self._epoch
        orders, size = self._draw_samples(epoch)
        lengths = [len(order) for order in orders]
        active_lanes = [
            lane for lane, runs in enumerate(self._running.tolist()) if runs
        ]
        plan = plan_epoch(lengths, active_lanes, size)
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
            counted_before, calls = self._session.samples, []
            for batch in batches:
                called_before = self._session.calls
                if self.task.step is None:
                    variables = {
                        key: of[lanes] for key, of in self.models.variables.items()
                    }
                    gradients, loss = self._session.gradients(lanes, batch, variables)
                    self._optimizer.step(lanes, gradients)
                else:
                    loss = self._step_by_method(lanes, batch)
                if self._counts_steps:
                    self._random.take(lanes)
                calls.append(self._session.calls - called_before)
                losses.append(loss)
                heartbeat.beat()
            if self.resources.privacy is not None:
                self._count_noisy(run, run.positions(orders), calls)
            else:
                of_each_lane = self._session.samples - counted_before
                self.sample_gradients[run.lanes] += of_each_lane
            results.append((run, torch.stack(losses)))
            # Frees the samples before those of the next block are gathered.
            del batch, batches
        record = self._sum_losses(results, size)
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
            self._running &= ~self.task.until(history, self.models.variables).cpu()

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
        given = {name: value[lanes] for name, value in self.models.variables.items()}
        context = StepContext(
            variables=DeclaredTensors(given, "context.variables", "fleet.train_by"),
            index=self._random.taken[
                lanes
            ].clone(),  # a copy, because a step may keep it
            _lanes=lanes,
            _batches=batch.split(self.task.batches),
            _session=self._session,
            _optimizer=self._optimizer,
            _random=self._random,
        )
        self.task.step(context)
        context._restore_models()
        for name, value in context.variables.items():
            if value is not given[name]:
                mixing.index_copy(self.models.variables[name], lanes, value)
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
        sizes = [run.samples for run in block]
        held = None
        if self.resources.privacy is not None:
            held = index >= 0
            index = index.clamp(min=0)
        x, y = self.resources.samples.take(index)
        parts = zip(block, x.split(sizes), y.split(sizes), strict=True)
        held_parts = [None] * len(block) if held is None else held.split(sizes)
        for (run, x_of_run, y_of_run), held_of_run in zip(
            parts, held_parts, strict=True
        ):
            self._count(run)
            lanes = index_lanes(run.lanes, self.resources.device)
            yield run, lanes, _cut(run, x_of_run, y_of_run, held_of_run)

    def _count(self, run: BatchRun) -> None:
        lane_steps = self.resources.lane_steps
        lanes = len(run.lanes)
        lane_steps.samples += run.samples
        lane_steps.needed += lanes * run.batches
        lane_steps.batched += run.batches
        lane_steps.computed += self._session.computed_lanes(lanes) * run.batches

    def _count_noisy(
        self, run: BatchRun, positions: np.ndarray, calls: list[int]
    ) -> None:
        """Count the gradients of a run with sample-level privacy.

        Args:
            positions: the samples of the run, [lanes, batches · size], −1 for none.
            calls: how many gradients were taken of each mini-batch.
        """
        from hpcfl.clients.sample_privacy import count_held

        held = count_held(positions, run.batches)
        self.sample_gradients[run.lanes] += held @ np.array(calls, np.int64)
        for gradients in calls:
            if gradients > MOST_GRADIENTS:
                raise UserError(
                    f"a step takes {gradients} gradients of a mini-batch; [privacy] unit "
                    f"= 'sample' allows at most {MOST_GRADIENTS}"
                )
            self.noisy_batches[run.lanes, gradients] += 1

    def _draw_samples(self, epoch: int) -> tuple[list[np.ndarray], int]:
        """Return the positions of each lane's samples in this epoch, in order, and the
        size of a full mini-batch.

        With sample-level privacy mini-batches are Poisson samples, which all are padded
        to the largest one with −1.
        """
        if self.resources.privacy is None:
            return self._orders(epoch), self.size
        from hpcfl.clients.sample_privacy import draw_batches, pad_batches, round_up

        seed, samples = self.resources.seed, self.resources.samples
        batches = []
        for lane in self.lanes:
            key = self.task.phase, lane.round, lane.client, epoch
            steps = -(-lane.length // self.size)
            drawn = draw_batches(len(lane.pool), self.size, steps, seed, *key)
            ends = np.cumsum([len(batch) for batch in drawn])
            order = samples.vary(lane.pool[np.concatenate(drawn)], seed, *key)
            batches.append(np.split(order, ends[:-1]))
        largest = max(len(batch) for drawn in batches for batch in drawn)
        width = round_up(largest, PIECE)
        return [pad_batches(drawn, width) for drawn in batches], width

    def _orders(self, epoch: int) -> list[np.ndarray]:
        """Return the positions of each lane's samples in this epoch, in order: of its
        shuffled pool as many as are used.
        """
        seed, samples = self.resources.seed, self.resources.samples
        keys = [
            (self.task.phase, lane.round, lane.client, epoch) for lane in self.lanes
        ]
        sizes = [len(lane.pool) for lane in self.lanes]
        shuffled = randomness.permutations(
            sizes, seed, [("shuffle", *key) for key in keys]
        )
        return [
            samples.vary(lane.pool[order[: lane.length]], seed, *key)
            for lane, order, key in zip(self.lanes, shuffled, keys, strict=True)
        ]

    def _sum_losses(self, results: list[tuple[BatchRun, Tensor]], size: int) -> Tensor:
        """Return each lane's two sums over the samples of an epoch, and the last batch's
        objective, float64 [L, 3].

        A lane has one smaller last batch at most, so that all of these are added at
        once.

        Args:
            results: runs in order, with the objectives and data terms of their batches,
                [batches, a, 2].
            size: samples of a full mini-batch.
        """
        device = self.resources.device
        record = torch.zeros(len(self.lanes), 3, dtype=torch.float64, device=device)
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
        (lane,) = self.lanes
        key = self.task.phase, lane.round, lane.client, self._epoch
        return randomness.seeded(self.resources.seed, "model", *key)


def _cut(run: BatchRun, x: Tensor, y: Tensor, held: Tensor | None) -> list[Batch]:
    """Split a run's samples ``x`` [a·batches·size, …], ``y``, ``held`` into its
    mini-batches.
    """
    lanes = len(run.lanes)
    span = run.batches * run.size
    # One lane's batch is a slice of the gathered block, which keeps its memory layout.
    x = x[None] if lanes == 1 else x.view(lanes, span, *x.shape[1:])
    x_batches = x.split(run.size, dim=1)
    y_batches = y.view(lanes, span).split(run.size, dim=1)
    held_batches: Sequence[Tensor | None] = [None] * run.batches
    if held is not None:
        held_batches = held.view(lanes, span).split(run.size, dim=1)
    batches = []
    for parts in zip(x_batches, y_batches, held_batches, strict=True):
        batches.append(Batch(*parts))
    return batches
