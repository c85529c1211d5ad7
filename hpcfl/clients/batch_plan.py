"""The mini-batches of an epoch: how they are drawn, and their plan, which is computed from
the number of samples of each lane.

Lanes are clients that train side by side, sorted by ``order_by_length``. First they do their
full batches in lockstep, fewer and fewer lanes as clients run out; then their smaller
last batches, grouped by size. So no batch is ever padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hpcfl.clients.execution import Kernel, Session, Work
from hpcfl.clients.samples import Samples
from hpcfl.experiment.sections import Training
from hpcfl.rows import randomness

# The most gradients of one mini-batch that sample-level privacy counts.
MOST_GRADIENTS = 16
BLOCK_SAMPLES = 2048  # how many samples are gathered and normalised at once


@dataclass(frozen=True)
class BatchRun:
    """Batches of one size that some lanes do side by side, one after the other.

    Attributes:
        lanes: the lanes, ascending.
        starts: where each lane's first batch begins in the order of its samples.
        size: samples of a batch of one lane.
        batches: how many batches each lane does.
    """

    lanes: list[int]
    starts: list[int]
    size: int
    batches: int

    @property
    def samples(self) -> int:
        return len(self.lanes) * self.size * self.batches

    def positions(self, orders: Sequence[np.ndarray]) -> np.ndarray:
        """Return the samples of these batches, ``[lanes, batches · size]``.

        Args:
            orders: the samples of every lane in the order of the epoch.
        """
        span = self.size * self.batches
        parts = []
        for lane, start in zip(self.lanes, self.starts, strict=True):
            parts.append(orders[lane][start : start + span])
        return np.stack(parts)


def plan_epoch(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[list[BatchRun]]:
    """Return the runs of an epoch in order, in blocks whose samples are gathered at
    once.

    Args:
        lengths: how many samples each lane uses, sorted as ``order_by_length`` does.
        lanes: which lanes take part, ascending.
        batch_size: samples of a full batch of one lane.
    """
    runs = [*_full_batches(lengths, lanes, batch_size)]
    runs += _last_batches(lengths, lanes, batch_size)
    return _blocks(runs)


def _full_batches(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[BatchRun]:
    """Return full batches in lockstep, at most ``BLOCK_SAMPLES`` samples a run where it can."""
    runs = []
    counts = [lengths[lane] // batch_size for lane in lanes]
    done = 0
    while counts and counts[0] > done:
        # Lanes are sorted, so that those with further full batches are the first ones.
        active = sum(count > done for count in counts)
        most = max(1, BLOCK_SAMPLES // (active * batch_size))
        batches = min(counts[active - 1] - done, most)
        starts = [done * batch_size] * active
        runs.append(BatchRun(list(lanes[:active]), starts, batch_size, batches))
        done += batches
    return runs


def _last_batches(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[BatchRun]:
    """Return the last batches that are smaller than a full one, largest first."""
    lanes_by_size: dict[int, list[int]] = {}
    for lane in lanes:
        size = lengths[lane] % batch_size
        if size:
            lanes_by_size.setdefault(size, []).append(lane)
    runs = []
    for size, group in sorted(lanes_by_size.items(), reverse=True):
        starts = [lengths[lane] - size for lane in group]
        runs.append(BatchRun(group, starts, size, 1))
    return runs


def _blocks(runs: list[BatchRun]) -> list[list[BatchRun]]:
    """Split runs into blocks of one run, or of several with at most ``BLOCK_SAMPLES``
    samples in all.
    """
    blocks: list[list[BatchRun]] = []
    samples = 0
    for run in runs:
        samples += run.samples
        if not blocks or samples > BLOCK_SAMPLES:
            blocks.append([])
            samples = run.samples
        blocks[-1].append(run)
    return blocks


def fewest_samples(training: Training, batch_norm: bool) -> int:
    """Return the smallest batch size that is trained on.

    batch_norm: whether the model has statistics of batches, which need two samples.
    """
    fewest = 2 if batch_norm else 1
    return max(fewest, training.batch_size) if training.drop_last else fewest


def epoch_length(samples: int, size: int, fewest: int, steps: int | None) -> int:
    """Return the number of a client's samples that an epoch uses. An epoch has whole
    batches and perhaps a smaller last one.

    Args:
        samples: how many the client has.
        size: samples of a full batch.
        fewest: the last batch is left out if it would have fewer samples.
        steps: the most batches; None for any number.
    """
    rest = samples % size
    used = samples if rest >= fewest else samples - rest
    return used if steps is None else min(used, steps * size)


def pool_size(samples: int, share: float) -> int:
    """Return how many of a client's samples a training on a share of them uses: at least
    one.
    """
    if share >= 1 or not samples:
        return samples
    return max(1, int(share * samples))


class AskedTraining(NamedTuple):
    """A local training that a method asks for, as far as its number of steps goes.

    Attributes:
        epochs, steps, share: as for ``Fleet.train``.
        batches: mini-batches of a step.
        gradients: the most noisy gradients of a mini-batch, with sample-level privacy.
    """

    epochs: int
    batches: int
    steps: int | None
    share: float
    gradients: int = 0

    def takes_step(self, samples: int, batch_size: int, fewest: int) -> bool:
        """Return whether a client with so many samples takes a step.

        fewest: as ``fewest_samples`` gives it.
        """
        length = epoch_length(
            pool_size(samples, self.share),
            self.batches * batch_size,
            self.batches * fewest,
            self.steps,
        )
        return self.epochs > 0 and length > 0


def order_by_length(lengths: Sequence[int], batch_size: int) -> list[int]:
    """Return positions in ``lengths``, sorted by the number of full batches, then by the size
    of the last one, the largest first.
    """

    def key(position: int) -> tuple[int, int, int]:
        batches, rest = divmod(lengths[position], batch_size)
        return -batches, -rest, position

    return sorted(range(len(lengths)), key=key)


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


@dataclass
class MiniBatches:
    """The mini-batches of a chunk's lanes, and counts of their gradients. In each epoch
    a lane's samples are shuffled, and each of them is in one mini-batch.

    Attributes:
        seed, phase: key the draws.
        size: samples of a full step of one lane.
        keys: the round and the id of each lane's client.
        sample_gradients: how many gradients of samples each lane computed, int64 [L].
        noisy_batches: of how many mini-batches each lane took g noisy gradients, in
            column g, int64 [L, MOST_GRADIENTS + 1].
    """

    kernel: Kernel
    samples: Samples
    seed: int
    phase: str
    size: int
    lanes: list[LaneClient]
    sample_gradients: np.ndarray = field(init=False)
    noisy_batches: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [(lane.round, lane.client) for lane in self.lanes]
        self.sample_gradients = np.zeros(len(self.lanes), np.int64)
        self.noisy_batches = np.zeros((len(self.lanes), MOST_GRADIENTS + 1), np.int64)

    def begin(self, work: Work) -> Session:
        """Return what computes the lanes' gradients."""
        return self.kernel.begin(work)

    def draw(self, epoch: int) -> tuple[list[np.ndarray], int]:
        """Return the positions of each lane's samples in an epoch, in order, and the
        size of a full mini-batch.
        """
        keys = [(self.phase, *key, epoch) for key in self.keys]
        sizes = [len(lane.pool) for lane in self.lanes]
        shuffled = randomness.permutations(
            sizes, self.seed, [("shuffle", *key) for key in keys]
        )
        orders = []
        for lane, order, key in zip(self.lanes, shuffled, keys, strict=True):
            used = lane.pool[order[: lane.length]]
            orders.append(self.samples.vary(used, self.seed, *key))
        return orders, self.size

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at drawn positions, as ``Samples.take``."""
        return self.samples.take(index)

    def count(
        self,
        run: BatchRun,
        orders: list[np.ndarray],
        calls: list[int],
        samples: int,
    ) -> None:
        """Count the gradients of a run.

        Args:
            orders: the result of ``draw``.
            calls: how many gradients were taken of each mini-batch.
            samples: of how many samples a lane took part in gradients.
        """
        self.sample_gradients[run.lanes] += samples
