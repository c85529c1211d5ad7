"""THE training loop: mini-batches of many clients, each client an independent lane.

Clients are sorted by length and taken ``widest`` at a time. In an epoch the lanes of a chunk first do their full batches in
lockstep, the chunk shrinking as clients run out, then their tail batches grouped by size: every step is real work on a
real batch, and a loss never sees padding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.fleet.optimizers import Lanes
from hpcfl.fleet.samples import Samples
from hpcfl.rows import randomness

Step = Callable[[Lanes, Tensor, Tensor], Tensor]  # one mini-batch on the selected lanes → losses [lanes]
Stretch = tuple[list[int], int, np.ndarray]  # which lanes do batches of which size on which samples [lanes, batches·size]
BLOCK_SAMPLES = 2048  # samples gathered and normalised at once


@dataclass
class Work:
    """What a rank's lanes have done: ``needed`` mini-batches of clients, lane-steps ``computed``, in ``turns`` of lanes side by
    side, which get narrower as clients finish; ``samples``."""

    needed: int = 0
    computed: int = 0
    turns: int = 0
    samples: int = 0

    def clear(self) -> None:
        self.needed = self.computed = self.turns = self.samples = 0


@dataclass(frozen=True)
class Schedule:
    """Which samples each client sees: its pool [n_i], shuffled anew every epoch by a key of its own."""

    batch_size: int
    seed: int
    key: tuple[int | str, ...]  # purpose, phase, round

    def order(self, client: int, pool: np.ndarray, epoch: int) -> np.ndarray:
        """The pool in this epoch's order."""
        order: np.ndarray = pool[randomness.permutation(len(pool), self.seed, *self.key, client, epoch)]
        return order


def epoch_length(samples: int, size: int, fewest: int, steps: int | None) -> int:
    """How many samples of an epoch are used in steps of ``size``: whole steps, and a tail of at least ``fewest``."""
    used = samples if samples % size >= fewest else samples - samples % size
    return used if steps is None else min(used, steps * size)


def by_length(lengths: list[int], batch_size: int) -> list[int]:
    """Positions sorted by full batches, then tails, longest first: a chunk's running lanes are a prefix."""
    return sorted(range(len(lengths)), key=lambda i: (-(lengths[i] // batch_size), -(lengths[i] % batch_size), i))


def chunks(order: list[int], widest: int) -> Iterator[list[int]]:
    """The sorted positions, at most ``widest`` at a time."""
    for start in range(0, len(order), widest):
        yield order[start:start + widest]


def run_epoch(step: Step, samples: Samples, orders: list[np.ndarray], batch_size: int, running: Tensor, work: Work) -> Tensor:
    """One epoch over the lanes of a chunk, sorted by ``by_length``; lanes where ``running`` is False stay as they are.

    Returns each lane's mean and last loss, [L, 2].
    """
    record = torch.zeros(len(orders), 2, dtype=torch.float64, device=samples.device)
    lengths = [len(order) for order in orders]
    lanes = [i for i, runs in enumerate(running.tolist()) if runs]
    work.needed += sum(-(-lengths[i] // batch_size) for i in lanes)
    work.samples += sum(lengths[i] for i in lanes)
    stretches = list(_stretches(orders, lanes, batch_size))
    # One transfer for the whole epoch: any other from the host would make it wait for the device.
    index = torch.from_numpy(np.concatenate([positions.ravel() for *_, positions in stretches])).to(samples.device)
    start = 0
    for block in _blocks(stretches):
        stop = start + sum(positions.size for *_, positions in block)
        _play(step, samples, block, index[start:stop], record, work)
        start = stop
    record[:, 0] /= torch.tensor(lengths, device=samples.device).clamp(min=1)
    return record


def _stretches(orders: list[np.ndarray], lanes: list[int], batch_size: int) -> Iterator[Stretch]:
    """An epoch of these lanes: their full batches, then their tails."""
    full = [len(orders[i]) // batch_size for i in lanes]
    done = 0
    while full and full[0] > done:  # `active` lanes have a full batch at position `done`
        active = sum(count > done for count in full)
        stop = min(full[active - 1], done + max(1, BLOCK_SAMPLES // (active * batch_size)))
        yield lanes[:active], batch_size, np.stack([orders[i][done * batch_size:stop * batch_size] for i in lanes[:active]])
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


def _play(step: Step, samples: Samples, block: list[Stretch], index: Tensor, record: Tensor, work: Work) -> None:
    """A block of stretches on the samples in ``index``, whose memory is free again before the next block is gathered."""
    sizes = [positions.size for *_, positions in block]
    x, y = samples.take(index)
    for (group, size, positions), part, labels in zip(block, x.split(sizes), y.split(sizes), strict=True):
        _steps(step, _selection(group, samples.device), part, labels.view(positions.shape), size, record, work)


def _steps(step: Step, lanes: Lanes, x: Tensor, y: Tensor, size: int, record: Tensor, work: Work) -> None:
    """The batches in ``x`` [lanes·batches·size, …] and ``y`` [lanes, batches·size], one after the other; losses join
    ``record`` [L, 2]."""
    width, span = y.shape
    # One lane's batch is a slice of the gathered block, which keeps its memory layout.
    x = x[None] if width == 1 else x.view(width, span, *x.shape[1:])
    work.turns += span // size
    work.computed += len(x) * (span // size)
    losses = torch.stack([step(lanes, x[:, start:start + size], y[:, start:start + size]).expand(width)
                          for start in range(0, span, size)]).to(record)
    # One by one in double precision: a lane's sum may not depend on how many lanes, so how many steps, a block holds.
    record[lanes, 0] = torch.cat([record[lanes, 0][None], losses * size]).cumsum(dim=0)[-1]
    record[lanes, 1] = losses[-1]
