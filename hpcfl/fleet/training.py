"""THE training loop: mini-batches of many clients, each client an independent lane.

Clients are sorted by length and taken ``widest`` at a time. In an epoch the lanes of a chunk first do their
full batches in lockstep, the chunk shrinking as clients run out, then their tail batches grouped by size:
every step is real work on a real batch, and a loss never sees padding.

A mini-batch's way, from the top down: ``train``, then a chunk's ``run``, ``epoch``, ``play`` and ``batch``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.fleet.kernels import Lanes, Loss, Tensors
from hpcfl.fleet.optimizers import Optimizer, Proximal
from hpcfl.fleet.resources import Resources
from hpcfl.fleet.turn import Draws, Turn
from hpcfl.rows import pinned, randomness

# which lanes do batches of which size on which samples [lanes, batches·size]
Stretch = tuple[list[int], int, np.ndarray]
BLOCK_SAMPLES = 2048  # samples gathered and normalised at once


@dataclass(frozen=True)
class Task:
    """A local training as it was asked for; ``Fleet.train`` and ``Fleet.train_by`` explain the words."""

    round: int
    loss: Loss
    names: list[str]  # the parameters that move, in the order of a row
    epochs: int
    steps: int | None = None
    batches: int = 1
    phase: str = "train"
    proximal: tuple[float, Tensor] | None = None  # the strength, and anchors [n, P]
    share: float = 1.0
    only: Tensor | None = None
    until: Callable[[Tensor, Tensors], Tensor] | None = None
    step: Callable[[Turn], None] | None = None  # None: a step of the optimiser on the loss

    def pool(self, seed: int, client: int, held: np.ndarray) -> np.ndarray:
        """Which of a client's samples ``held`` [n_i] it trains on: all, or a random share for the phase."""
        if self.share >= 1:
            return held
        count = max(1, int(self.share * len(held))) if len(held) else 0
        order = randomness.permutation(len(held), seed, "subset", self.phase, self.round, client)
        chosen: np.ndarray = held[np.sort(order[:count])]
        return chosen


@dataclass(frozen=True)
class Trained:
    """What a local training made of n clients: new tensors, what it was given stays as it is.

    rows: ``[n, P]``. buffers: their batch-norm statistics [n, B].
    losses: each client's mean in its last epoch, float64 [n].
    changed: the variables that the method's step assigned, [n, …] by name.
    """

    rows: Tensor
    buffers: Tensor
    losses: Tensor
    changed: Tensors


def train(task: Task, resources: Resources, ids: np.ndarray, rows: Tensor, buffers: Tensor,
          variables: Tensors) -> Trained:
    """Train clients ``ids`` [n] from ``rows`` [n, P], ``buffers`` [n, B] and ``variables`` [n, …] by name."""
    losses = torch.zeros(len(ids), dtype=torch.float64, device=resources.device)
    ended = Trained(rows.clone(), buffers.clone(), losses, {})
    pools = [task.pool(resources.seed, int(client), resources.samples.train[int(client)]) for client in ids]
    size = resources.training.batch_size * task.batches
    fewest = task.batches * (2 if resources.buffers.width else 1)  # batch norm needs two samples
    lengths = [epoch_length(len(pool), size, fewest, task.steps) for pool in pools]
    chosen = [True] * len(ids) if task.only is None else task.only.tolist()  # a device is waited for once
    order = [i for i in by_length(lengths, size) if lengths[i] and chosen[i]]

    def together(positions: list[int]) -> None:
        lanes = torch.tensor(positions, device=resources.device)
        chunk = Chunk(task, resources, [(int(ids[i]), pools[i], lengths[i]) for i in positions], size,
                      resources.stacked(ended.rows[lanes], ended.buffers[lanes]),
                      {name: value[lanes] for name, value in variables.items()},
                      None if task.proximal is None else (task.proximal[0], task.proximal[1][lanes]))
        ended.losses[lanes] = chunk.run()
        resources.kernel.check()
        ended.rows[lanes] = resources.setup.layout.flatten(chunk.tensors, ended.rows[lanes])
        ended.buffers[lanes] = resources.buffers.flatten(chunk.tensors, ended.buffers[lanes])
        for name in chunk.assigned:
            ended.changed.setdefault(name, variables[name].clone())[lanes] = chunk.variables[name]

    resources.side_by_side(order, together)
    return ended


class Chunk:
    """Clients side by side, a lane each, sorted by ``by_length``, from their first mini-batch to their last.

    clients: the number of each, its pool and its samples an epoch. size: samples of a step.
    tensors, variables: of the lanes, ``[L, …]`` by name, which steps change; ``assigned``: names of the
        variables that they changed.
    """

    def __init__(self, task: Task, resources: Resources, clients: list[tuple[int, np.ndarray, int]],
                 size: int, tensors: Tensors, variables: Tensors, proximal: tuple[float, Tensor] | None):
        self.task, self.resources, self.clients, self.size = task, resources, clients, size
        self.tensors, self.variables = tensors, variables
        self.assigned: set[str] = set()
        self._gradient = resources.kernel.session(tensors, task.names, task.loss)
        anchor = None if proximal is None else Proximal(
            proximal[0], resources.kernel.lay_out(resources.setup.layout.stack(proximal[1])))
        self._optimizer = Optimizer(resources.training, resources.setup.learning_rate(task.round), anchor)
        steps = [-(-length // size) for _, _, length in clients]
        numbers = [number for number, _, _ in clients]
        self._draws = Draws(resources.seed, task.round, numbers, steps, resources.device)

    def run(self) -> Tensor:
        """All epochs. Returns each lane's mean loss in its last one, float64 [L]."""
        losses = torch.zeros(len(self.clients), dtype=torch.float64, device=self.resources.device)
        history: list[Tensor] = []
        running = torch.ones(len(self.clients), dtype=torch.bool)
        for epoch in range(self.task.epochs):
            record = self.epoch(epoch, running)
            losses = torch.where(running.to(losses.device), record[:, 0], losses)
            history.append(record[:, 1])
            if self.task.until is not None:
                running &= ~self.task.until(torch.stack(history, dim=1), self.variables).cpu()
                if not running.any():
                    break
        return losses

    def epoch(self, epoch: int, running: Tensor) -> Tensor:
        """One epoch of the lanes where ``running``, bool [L]; the others stay as they are.

        Returns each lane's mean and last loss, float64 [L, 2].
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
        numbers = np.concatenate([*(positions.ravel() for *_, positions in stretches), np.array(lengths)])
        told = pinned.on_device(torch.from_numpy(numbers), samples.device)
        index, counts = told.tensor_split([-len(lengths)])
        record = torch.zeros(len(orders), 2, dtype=torch.float64, device=samples.device)
        start = 0
        for block in _blocks(stretches):
            sizes = [positions.size for *_, positions in block]
            x, y = samples.take(index[start:start + sum(sizes)])
            parts = zip(block, x.split(sizes), y.split(sizes), strict=True)
            for (group, size, part), inputs, labels in parts:
                self.play(_selection(group, samples.device), inputs, labels.view(part.shape), size, record)
            start += sum(sizes)
            del x, y, parts, inputs, labels  # their memory is free again before the next block is gathered
        record[:, 0] /= counts.clamp(min=1)
        return record

    def order(self, lane: int, epoch: int) -> np.ndarray:
        """A lane's samples in this epoch's order: its pool, shuffled by a key of its own."""
        (client, pool, length), task, seed = self.clients[lane], self.task, self.resources.seed
        key = (task.phase, task.round, client, epoch)
        shuffled = pool[randomness.permutation(len(pool), seed, "shuffle", *key)]
        return self.resources.samples.vary(shuffled[:length], seed, *key)

    def play(self, lanes: Lanes, x: Tensor, y: Tensor, size: int, record: Tensor) -> None:
        """The batches in ``x`` [lanes·batches·size, …] and ``y`` [lanes, batches·size], one after the other.

        Their losses join ``record`` [L, 2].
        """
        width, span = y.shape
        # One lane's batch is a slice of the gathered block, which keeps its memory layout.
        x = x[None] if width == 1 else x.view(width, span, *x.shape[1:])
        self.resources.lane_steps.turns += span // size
        self.resources.lane_steps.computed += len(x) * (span // size)
        parts = zip(x.split(size, dim=1), y.split(size, dim=1), strict=True)
        losses = torch.stack([self.batch(lanes, *part).expand(width) for part in parts]).to(record)
        # One by one in double precision: a lane's sum may not depend on how many steps a block holds.
        record[lanes, 0] = torch.cat([record[lanes, 0][None], losses * size]).cumsum(dim=0)[-1]
        record[lanes, 1] = losses[-1]

    def batch(self, lanes: Lanes, x: Tensor, y: Tensor) -> Tensor:
        """ONE mini-batch ``x`` [a, size, …], ``y`` [a, size] of the lanes: its losses [a]."""
        given = {name: value[lanes] for name, value in self.variables.items()}
        if self.task.step is None:
            gradients, losses = self._gradient(lanes, x, y, given)
            self._optimizer.step(self.tensors, lanes, gradients)
        else:
            parts = zip(*(part.tensor_split(self.task.batches, dim=1) for part in (x, y)), strict=True)
            turn = Turn(dict(given), self._draws.taken[lanes], self.task.names, self.tensors, lanes,
                        list(parts), self._gradient, self._optimizer, self._draws)
            self.task.step(turn)
            self._draws.taken[lanes] += 1
            for name, value in turn.variables.items():
                if value is not given[name]:
                    self.variables[name][lanes] = value
                    self.assigned.add(name)
            losses = turn.losses
        self.resources.beat()
        return losses


def epoch_length(samples: int, size: int, fewest: int, steps: int | None) -> int:
    """How many samples of an epoch are used in steps of ``size``: whole steps, and a tail of at
    least ``fewest``."""
    used = samples if samples % size >= fewest else samples - samples % size
    return used if steps is None else min(used, steps * size)


def by_length(lengths: list[int], batch_size: int) -> list[int]:
    """Positions sorted by full batches, then tails, longest first: a chunk's running lanes are a prefix."""
    return sorted(range(len(lengths)),
                  key=lambda i: (-(lengths[i] // batch_size), -(lengths[i] % batch_size), i))


def _stretches(orders: list[np.ndarray], lanes: list[int], batch_size: int) -> Iterator[Stretch]:
    """An epoch of these lanes: their full batches, then their tails."""
    full = [len(orders[i]) // batch_size for i in lanes]
    done = 0
    while full and full[0] > done:  # `active` lanes have a full batch at position `done`
        active = sum(count > done for count in full)
        stop = min(full[active - 1], done + max(1, BLOCK_SAMPLES // (active * batch_size)))
        yield lanes[:active], batch_size, np.stack([orders[i][done * batch_size:stop * batch_size]
                                                    for i in lanes[:active]])
        done = stop
    tails: dict[int, list[int]] = {}
    for i in lanes:
        if tail := len(orders[i]) % batch_size:
            tails.setdefault(tail, []).append(i)
    for tail, group in sorted(tails.items(), reverse=True):
        yield group, tail, np.stack([orders[i][-tail:] for i in group])


def _blocks(stretches: list[Stretch]) -> Iterator[list[Stretch]]:
    """What follows each other, with at most ``BLOCK_SAMPLES`` samples where it is more than one."""
    block: list[Stretch] = []
    for stretch in stretches:
        if block and sum(positions.size for *_, positions in [*block, stretch]) > BLOCK_SAMPLES:
            yield block
            block = []
        block.append(stretch)
    yield block


def _selection(group: list[int], device: torch.device) -> Lanes:
    """Neighbouring lanes as a slice, whose steps change views in place; others as indices."""
    if group[-1] - group[0] == len(group) - 1:
        return slice(group[0], group[-1] + 1)
    return torch.tensor(group).to(device, non_blocking=True)
