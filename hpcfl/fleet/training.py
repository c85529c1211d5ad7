"""THE training loop: mini-batches of many clients, each client an independent lane.

Clients are sorted by their number of samples and trained in *chunks*, as many side by
side as the kernel takes. In an epoch the lanes of a chunk first do their full batches
in lockstep, fewer and fewer lanes as clients run out; then they do their tails, the
smaller last batches, grouped by size. So no batch is ever padded.

A mini-batch's way, from the top down: ``train``, then a chunk's ``run``, ``epoch``,
``play`` and ``batch``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.files import heartbeat, scratch
from hpcfl.fleet import frozen
from hpcfl.fleet.losses import Lanes, Loss, Tensors, regularised, selection
from hpcfl.fleet.modules import Frozen
from hpcfl.fleet.optimizers import Optimizer, Proximal
from hpcfl.fleet.resources import Resources
from hpcfl.fleet.turn import Draws, Turn
from hpcfl.rows import pinned, places, randomness

# (lanes, size, positions of samples [lanes, batches·size]): batches of one size that
# lanes do side by side
Stretch = tuple[list[int], int, np.ndarray]
# (lanes, size of the batches, objectives and data terms [batches, lanes, 2]): what came
# of a stretch
Played = tuple[list[int], int, Tensor]
BLOCK_SAMPLES = 2048  # how many samples are gathered and normalised at once


@dataclass(frozen=True)
class Task:
    """A local training as a method asked for it; ``Fleet.train`` and ``train_by``
    explain the fields.
    """

    round: int
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
    until: Callable[[Tensor, Tensors], Tensor] | None = None
    frozen: Frozen = "evaluation"  # the mode of layers of which nothing is trained
    step: Callable[[Turn], None] | None = (
        None  # None: a step of the optimiser on the loss
    )

    def lasts(self, clients: Sequence[int]) -> Tensor:
        """How many epochs the clients at these positions do, int64 [L]: at least one of
        several.
        """
        if self.pace is None:
            return torch.full((len(clients),), self.epochs)
        return (
            torch.from_numpy(self.pace[clients] * self.epochs)
            .long()
            .add(1)
            .clamp(max=self.epochs)
        )

    def pool(self, seed: int, client: int, held: np.ndarray) -> np.ndarray:
        """Which of a client's samples ``held`` [n_i] it trains on: all, or a random
        share for the phase.
        """
        if self.share >= 1:
            return held
        count = max(1, int(self.share * len(held))) if len(held) else 0
        order = randomness.permutation(
            len(held), seed, "subset", self.phase, self.round, client
        )
        chosen: np.ndarray = held[np.sort(order[:count])]
        return chosen


@dataclass(frozen=True)
class Trained:
    """What a local training made of n clients, in new tensors.

    rows: ``[n, P]``. buffers: their batch-norm statistics ``[n, B]``.
    losses: each client's mean objective and its data term in its last epoch, float64
        [n, 2]; 0 for those that did not train.
    changed: the variables that the method's step assigned, ``[n, …]`` by name.
    """

    rows: Tensor
    buffers: Tensor
    losses: Tensor
    changed: Tensors


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
    trained = Trained(_copied(rows), buffers.clone(), losses, {})
    pools = [
        task.pool(resources.seed, int(client), resources.samples.train[int(client)])
        for client in ids
    ]
    size = resources.training.batch_size * task.batches
    fewest = task.batches * (
        2 if resources.buffers.width else 1
    )  # batch norm needs two samples
    lengths = [epoch_length(len(pool), size, fewest, task.steps) for pool in pools]
    chosen = (
        [True] * len(ids) if task.only is None else task.only.tolist()
    )  # a device is waited for once
    order = [i for i in by_length(lengths, size) if lengths[i] and chosen[i]]
    once = bool(order) and _frozen_once(
        task, resources, trained, pools, order[0], variables
    )

    def together(positions: list[int]) -> None:
        lanes = torch.tensor(positions, device=resources.device)
        here, own = resources, [pools[i] for i in positions]
        if once:
            here, own = frozen.run_once(
                resources, trained.rows[lanes], trained.buffers[lanes], own
            )
        clients = [
            (int(ids[i]), pool, lengths[i])
            for i, pool in zip(positions, own, strict=True)
        ]
        # No name for them here, so that their memory is free once a GPU has them where
        # its graphs look.
        chunk = Chunk(
            task,
            here,
            clients,
            task.lasts(positions),
            size,
            frozen.heads(resources, trained.rows, lanes)
            if once
            else resources.stacked(trained.rows, trained.buffers, lanes),
            {name: value[lanes] for name, value in variables.items()},
            None
            if task.proximal is None
            else (task.proximal[0], task.proximal[1][lanes]),
        )
        places.put(trained.losses, lanes, chunk.run())
        resources.setup.layout.write(chunk.tensors, trained.rows, lanes)
        resources.buffers.write(chunk.tensors, trained.buffers, lanes)
        for name in chunk.assigned:
            changed = trained.changed.setdefault(name, variables[name].clone())
            places.put(changed, lanes, chunk.variables[name])

    if once:
        frozen.side_by_side(resources, order, pools, together)
    else:
        resources.side_by_side(order, together)
    return trained


def _frozen_once(
    task: Task,
    resources: Resources,
    start: Trained,
    pools: list[np.ndarray],
    first: int,
    variables: Tensors,
) -> bool:
    """Whether the layers below the head run once, before the first epoch; ``first``: a
    client's position.
    """
    if task.frozen == "training" and resources.buffers.width:
        return False  # what batch norm makes of a sample depends on its mini-batch
    one = slice(first, first + 1)
    return frozen.fits(
        resources,
        start.rows[one],
        start.buffers[one],
        pools[first],
        task.names,
        task.loss,
        {name: value[one] for name, value in variables.items()},
    )


def _copied(rows: Tensor) -> Tensor:
    """A copy of ``rows``, which on the CPU may be larger than memory."""
    return scratch.copy(rows) if rows.device.type == "cpu" else rows.clone()


class Chunk:
    """Clients side by side, a lane each, sorted by ``by_length``, from their first
    mini-batch to their last.

    clients: for each lane the client's id, its pool, and how many samples of it an
        epoch uses.
    lasts: how many epochs each lane does at most, int64 [L].
    size: samples of a full step of one lane.
    tensors, variables: of the lanes, ``[L, …]`` by name; steps change them in place.
    proximal: the strength, and the lanes' anchors [L, P].
    assigned: the names of the variables that steps have changed.
    """

    def __init__(
        self,
        task: Task,
        resources: Resources,
        clients: list[tuple[int, np.ndarray, int]],
        lasts: Tensor,
        size: int,
        tensors: Tensors,
        variables: Tensors,
        proximal: tuple[float, Tensor] | None,
    ):
        self.task, self.resources, self.clients, self.size = (
            task,
            resources,
            clients,
            size,
        )
        self.lasts = lasts
        self.assigned: set[str] = set()
        kernel, setup = resources.kernel, resources.setup
        self._session = kernel.session(tensors, task.names, task.loss, task.frozen)
        self.tensors, self.variables = (
            self._session.tensors,
            kernel.settle("variables", variables),
        )
        anchor = (
            None
            if proximal is None
            else Proximal(proximal[0], kernel.lay_out(setup.layout.stack(proximal[1])))
        )
        self._optimizer = Optimizer(
            resources.training,
            setup.learning_rate(task.round),
            {name: self.tensors[name] for name in task.names},
            anchor,
            kernel.settle,
        )
        steps = [-(-length // size) for _, _, length in clients]
        numbers = [number for number, _, _ in clients]
        self._draws = Draws(
            resources.seed, task.round, numbers, steps, resources.device
        )

    def run(self) -> Tensor:
        """Train all epochs; returns each lane's mean objective and data term in its
        last one, float64 [L, 2].

        The proximal term is that of the trained model: in every step it would cost a
        pass over the models. Raises RunFailure if a recording of the steps turned out
        to be wrong.
        """
        losses = torch.zeros(
            len(self.clients), 2, dtype=torch.float64, device=self.resources.device
        )
        history: list[Tensor] = []
        running = torch.ones(len(self.clients), dtype=torch.bool)
        for epoch in range(self.task.epochs):
            running &= self.lasts > epoch
            if not running.any():
                break
            with self._drawn_by_model(epoch):
                record = self.epoch(epoch, running)
            losses = torch.where(
                pinned.on_device(running, losses.device)[:, None], record[:, :2], losses
            )
            history.append(record[:, 2])
            if self.task.until is not None:
                running &= ~self.task.until(
                    torch.stack(history, dim=1), self.variables
                ).cpu()
        proximal = self._optimizer.proximal_term()
        self.resources.kernel.check()
        return losses if proximal is None else regularised(losses, proximal)

    def _drawn_by_model(self, epoch: int) -> AbstractContextManager[None]:
        """A block in which what a model draws by itself, for dropout, is a function of
        client and epoch.

        Clients side by side cannot draw so; a model that does trains them one after the
        other.
        """
        if self.resources.kernel.widest > 1:
            return nullcontext()
        ((client, _, _),) = self.clients
        key = self.task.phase, self.task.round, client, epoch
        return randomness.seeded(self.resources.seed, "model", *key)

    def epoch(self, epoch: int, running: Tensor) -> Tensor:
        """Train one epoch of the lanes where ``running``, bool [L]; the others stay as
        they are.

        Returns each lane's mean objective and data term, and the last mini-batch's
        objective, float64 [L, 3].
        """
        samples, lane_steps = self.resources.samples, self.resources.lane_steps
        orders = [self.order(lane, epoch) for lane in range(len(self.clients))]
        lengths = [len(order) for order in orders]
        lanes = [lane for lane, runs in enumerate(running.tolist()) if runs]
        lane_steps.needed += sum(-(-lengths[lane] // self.size) for lane in lanes)
        lane_steps.samples += sum(lengths[lane] for lane in lanes)
        self._draws.begin(epoch)
        stretches = list(_stretches(orders, lanes, self.size))
        # One transfer for the whole epoch, and one for which the host does not wait.
        numbers = np.concatenate(
            [*(positions.ravel() for *_, positions in stretches), np.array(lengths)]
        )
        told = pinned.on_device(torch.from_numpy(numbers), samples.device)
        index, counts = told.tensor_split([-len(lengths)])
        played: list[Played] = []
        start = 0
        for block in _blocks(stretches):
            sizes = [positions.size for *_, positions in block]
            x, y = samples.take(index[start : start + sum(sizes)])
            parts = zip(block, x.split(sizes), y.split(sizes), strict=True)
            for (group, size, part), inputs, labels in parts:
                chosen = selection(group, samples.device)
                played.append(
                    (
                        group,
                        size,
                        self.play(chosen, inputs, labels.view(part.shape), size),
                    )
                )
            start += sum(sizes)
            del (
                x,
                y,
                parts,
                inputs,
                labels,
            )  # their memory is free again before the next block is gathered
        record = self.added(played)
        record[:, :2].div_(counts.clamp(min=1)[:, None])
        return record

    def order(self, lane: int, epoch: int) -> np.ndarray:
        """Positions of a lane's samples in this epoch, in order: of its shuffled pool
        as many as are used.
        """
        (client, pool, length), task, seed = (
            self.clients[lane],
            self.task,
            self.resources.seed,
        )
        key = (task.phase, task.round, client, epoch)
        shuffled = pool[randomness.permutation(len(pool), seed, "shuffle", *key)]
        return self.resources.samples.vary(shuffled[:length], seed, *key)

    def play(self, lanes: Lanes, x: Tensor, y: Tensor, size: int) -> Tensor:
        """Train on the batches in ``x`` [a·batches·size, …], ``y`` [a, batches·size],
        one after the other.

        Returns the objectives and data terms of the ``a`` lanes, [batches, a, 2].
        """
        width, span = y.shape
        # One lane's batch is a slice of the gathered block, which keeps its memory
        # layout.
        x = x[None] if width == 1 else x.view(width, span, *x.shape[1:])
        lane_steps = self.resources.lane_steps
        lane_steps.batched += span // size
        lane_steps.computed += self._session.computed(width) * (span // size)
        parts = zip(x.split(size, dim=1), y.split(size, dim=1), strict=True)
        return torch.stack(
            [self.batch(lanes, *part).expand(width, 2) for part in parts]
        )

    def added(self, played: list[Played]) -> Tensor:
        """Each lane's two sums over the samples of an epoch, and the last batch's
        objective, float64 [L, 3].

        Tails, which come last and of which a lane has one at most, are added all at
        once.
        """
        device = self.resources.device
        record = torch.zeros(len(self.clients), 3, dtype=torch.float64, device=device)
        full = [[stretch] for stretch in played if stretch[1] == self.size]
        for stretches in filter(None, [*full, played[len(full) :]]):
            numbers = [(lane, size) for group, size, _ in stretches for lane in group]
            lanes, sizes = pinned.on_device(torch.tensor(numbers), device).unbind(dim=1)
            losses = torch.cat([found for *_, found in stretches], dim=1).to(record)
            # Added one by one in double precision: a sum may not depend on how many
            # steps a block holds.
            sums = torch.cat([record[lanes, :2][None], losses * sizes[:, None]]).cumsum(
                dim=0
            )
            places.put(record, lanes, torch.cat([sums[-1], losses[-1, :, :1]], dim=1))
        return record

    def batch(self, lanes: Lanes, x: Tensor, y: Tensor) -> Tensor:
        """Do ONE step on the lanes' mini-batches ``x`` [a, size, …], ``y`` [a, size].

        Returns their objectives and data terms, [a, 2].
        """
        given = {name: value[lanes] for name, value in self.variables.items()}
        if self.task.step is None:
            losses = self._session.step(lanes, x, y, given, self._optimizer)
        else:
            parts = zip(
                *(part.tensor_split(self.task.batches, dim=1) for part in (x, y)),
                strict=True,
            )
            # a copy, because a step may keep it
            turn = Turn(
                dict(given),
                self._draws.taken[lanes].clone(),
                self.task.names,
                self.tensors,
                lanes,
                list(parts),
                self._session,
                self._optimizer,
                self._draws,
            )
            self.task.step(turn)
            turn._put_back()
            self._draws.take(lanes)
            for name, value in turn.variables.items():
                if value is not given[name]:
                    places.put(self.variables[name], lanes, value)
                    self.assigned.add(name)
            losses = turn.losses
        heartbeat.beat()
        return losses


def epoch_length(samples: int, size: int, fewest: int, steps: int | None) -> int:
    """How many samples an epoch uses: whole steps of ``size``, and a tail of at least
    ``fewest``.

    steps: the most steps; None for any number.
    """
    used = samples if samples % size >= fewest else samples - samples % size
    return used if steps is None else min(used, steps * size)


def by_length(lengths: list[int], batch_size: int) -> list[int]:
    """Positions in ``lengths``, sorted by the number of full batches, then by the tail,
    longest first.

    So the lanes of a chunk that still have full batches are always its first ones.
    """
    return sorted(
        range(len(lengths)),
        key=lambda i: (-(lengths[i] // batch_size), -(lengths[i] % batch_size), i),
    )


def _stretches(
    orders: list[np.ndarray], lanes: list[int], batch_size: int
) -> Iterator[Stretch]:
    """An epoch of these lanes, whose samples are ``orders``: their full batches, then
    their tails.
    """
    full = [len(orders[i]) // batch_size for i in lanes]
    done = 0
    while (
        full and full[0] > done
    ):  # so many are `active`: they have more than `done` full batches
        active = sum(count > done for count in full)
        stop = min(
            full[active - 1], done + max(1, BLOCK_SAMPLES // (active * batch_size))
        )
        yield (
            lanes[:active],
            batch_size,
            np.stack(
                [
                    orders[i][done * batch_size : stop * batch_size]
                    for i in lanes[:active]
                ]
            ),
        )
        done = stop
    tails: dict[int, list[int]] = {}
    for i in lanes:
        if tail := len(orders[i]) % batch_size:
            tails.setdefault(tail, []).append(i)
    for tail, group in sorted(tails.items(), reverse=True):
        yield group, tail, np.stack([orders[i][-tail:] for i in group])


def _blocks(stretches: list[Stretch]) -> Iterator[list[Stretch]]:
    """Stretches that are gathered at once: one, or several with at most
    ``BLOCK_SAMPLES`` samples in all.
    """
    block: list[Stretch] = []
    for stretch in stretches:
        if (
            block
            and sum(positions.size for *_, positions in [*block, stretch])
            > BLOCK_SAMPLES
        ):
            yield block
            block = []
        block.append(stretch)
    yield block
