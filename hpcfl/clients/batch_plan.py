"""Mini-batches of an epoch: their plan, and the random draws of samples.

The lanes of a chunk (``execution``) are sorted by ``order_by_length``. First they
process their full batches in lockstep; lanes without further full batches drop out.
Then their smaller last batches follow, grouped by size. No batch needs padding.

``BatchRun`` and ``plan_epoch`` are the plan, ``MiniBatches`` the draws.
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

# The maximum number of gradients per mini-batch with sample-level privacy.
MOST_GRADIENTS = 16
BLOCK_SAMPLES = 2048  # number of samples gathered and normalised at once


@dataclass(frozen=True)
class BatchRun:
    """Consecutive batches of one size that some lanes process side by side.

    Attributes:
        lanes: lane numbers, ascending.
        starts: start of each lane's first batch in the order of its samples.
        size: number of samples in a batch of one lane.
        batches: number of batches of each lane.
    """

    lanes: list[int]
    starts: list[int]
    size: int
    batches: int

    @property
    def samples(self) -> int:
        """Total number of samples of all lanes."""
        return len(self.lanes) * self.size * self.batches

    def positions(self, orders: Sequence[np.ndarray]) -> np.ndarray:
        """Return the positions of these batches' samples, [a, batches · size].

        Args:
            orders: samples of every lane in the order of the epoch.
        """
        span = self.size * self.batches
        parts = []
        for lane, start in zip(self.lanes, self.starts, strict=True):
            parts.append(orders[lane][start : start + span])
        return np.stack(parts)


def plan_epoch(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[list[BatchRun]]:
    """Return the runs of an epoch in order, in blocks of runs gathered at once.

    Args:
        lengths: number of samples of each lane, in the order of ``order_by_length``.
        lanes: lanes that take part, ascending.
        batch_size: number of samples in a full batch of one lane.
    """
    runs = [*_plan_full_batches(lengths, lanes, batch_size)]
    runs += _plan_last_batches(lengths, lanes, batch_size)
    return _group_blocks(runs)


def _plan_full_batches(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[BatchRun]:
    """Return runs of full batches, of at most ``BLOCK_SAMPLES`` samples or one batch."""
    runs = []
    counts = [lengths[lane] // batch_size for lane in lanes]
    done = 0
    while counts and counts[0] > done:
        # Lanes are sorted by length: the first ones have further full batches.
        active = sum(count > done for count in counts)
        most = max(1, BLOCK_SAMPLES // (active * batch_size))
        batches = min(counts[active - 1] - done, most)
        starts = [done * batch_size] * active
        runs.append(BatchRun(list(lanes[:active]), starts, batch_size, batches))
        done += batches
    return runs


def _plan_last_batches(
    lengths: Sequence[int], lanes: Sequence[int], batch_size: int
) -> list[BatchRun]:
    """Return runs of the lanes' smaller last batches, largest first."""
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


def _group_blocks(runs: list[BatchRun]) -> list[list[BatchRun]]:
    """Group runs into blocks: one run, or several of ``BLOCK_SAMPLES`` samples at most."""
    blocks: list[list[BatchRun]] = []
    samples = 0
    for run in runs:
        samples += run.samples
        if not blocks or samples > BLOCK_SAMPLES:
            blocks.append([])
            samples = run.samples
        blocks[-1].append(run)
    return blocks


def find_fewest_samples(training: Training, has_statistics: bool) -> int:
    """Return the minimum number of samples in a mini-batch.

    Args:
        training: training section of the experiment.
        has_statistics: whether the model computes batch statistics, which need two samples.
    """
    fewest = 2 if has_statistics else 1
    return max(fewest, training.batch_size) if training.drop_last else fewest


def count_epoch_samples(samples: int, size: int, fewest: int, steps: int | None) -> int:
    """Return the number of samples that a client uses in an epoch.

    An epoch has whole batches and possibly a smaller last one.

    Args:
        samples: number of the client's samples.
        size: number of samples in a full batch.
        fewest: minimum number of samples in the last batch; a smaller one is dropped.
        steps: maximum number of batches; None for no limit.
    """
    rest = samples % size
    used = samples if rest >= fewest else samples - rest
    return used if steps is None else min(used, steps * size)


def count_pool(samples: int, share: float) -> int:
    """Return the number of samples in a client's training subset, at least one.

    Args:
        samples: number of the client's samples; 0 gives 0.
        share: fraction of the samples.
    """
    if share >= 1 or not samples:
        return samples
    return max(1, int(share * samples))


class TrainingRequest(NamedTuple):
    """The number of steps that a method requested for a local training.

    Attributes:
        epochs, steps, share: as for ``Fleet.train``.
        batches: number of mini-batches per step.
        gradients: maximum number of noisy gradients per mini-batch, with sample-level
            privacy.
    """

    epochs: int
    batches: int
    steps: int | None
    share: float
    gradients: int = 0

    def takes_step(self, samples: int, batch_size: int, fewest: int) -> bool:
        """Return whether a client takes at least one step.

        Args:
            samples: number of the client's samples.
            batch_size: number of samples in a full mini-batch.
            fewest: minimum number of samples in a mini-batch, from ``find_fewest_samples``.
        """
        length = count_epoch_samples(
            count_pool(samples, self.share),
            self.batches * batch_size,
            self.batches * fewest,
            self.steps,
        )
        return self.epochs > 0 and length > 0


def order_by_length(lengths: Sequence[int], batch_size: int) -> list[int]:
    """Return positions in ``lengths``, sorted by number of full batches, largest first.

    Equal numbers are sorted by the size of the last batch, largest first.
    """

    def key(position: int) -> tuple[int, int, int]:
        batches, rest = divmod(lengths[position], batch_size)
        return -batches, -rest, position

    return sorted(range(len(lengths)), key=key)


class TrainingClient(NamedTuple):
    """A client of a local training.

    Attributes:
        id: client id.
        round: round in the key of its draws.
        pool: positions of its samples.
        length: number of samples that an epoch uses.
        epochs: maximum number of epochs; 0 for a client that does not train.
    """

    id: int
    round: int
    pool: np.ndarray
    length: int
    epochs: int


@dataclass
class MiniBatches:
    """Mini-batches of a chunk's lanes, and counts of their gradients.

    Each epoch shuffles a lane's samples; each of the used samples is in one mini-batch.

    Attributes:
        kernel: kernel that computes gradients.
        samples: samples of the rank.
        seed, phase: keys of the draws.
        size: number of samples in a full step of one lane.
        clients: client of each lane, [L].
        keys: round and id of each lane's client.
        sample_gradients: number of per-sample gradients that each lane computed, int64
            [L].
        noisy_batches: number of mini-batches from which each lane computed g noisy
            gradients, in column g, int64 [L, MOST_GRADIENTS + 1].
    """

    kernel: Kernel
    samples: Samples
    seed: int
    phase: str
    size: int
    clients: list[TrainingClient]
    sample_gradients: np.ndarray = field(init=False)
    noisy_batches: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [(client.round, client.id) for client in self.clients]
        self.sample_gradients = np.zeros(len(self.clients), np.int64)
        self.noisy_batches = np.zeros((len(self.clients), MOST_GRADIENTS + 1), np.int64)

    def begin(self, work: Work) -> Session:
        """Return a session that computes the lanes' gradients."""
        return self.kernel.begin(work)

    def draw(self, epoch: int) -> tuple[list[np.ndarray], int]:
        """Draw the samples of an epoch.

        Returns:
            The positions of each lane's samples in order, and the size of a full
            mini-batch.
        """
        orders = []
        for client, client_key in zip(self.clients, self.keys, strict=True):
            key = self.phase, *client_key, epoch
            order = randomness.permutation(len(client.pool), self.seed, "shuffle", *key)
            used = client.pool[order[: client.length]]
            orders.append(self.samples.vary(used, self.seed, *key))
        return orders, self.size

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at drawn positions, like ``Samples.take``."""
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
            run: run that has trained.
            orders: first result of ``draw``.
            calls: number of gradients computed for each mini-batch.
            samples: number of per-sample gradients that each lane computed in the run.
        """
        self.sample_gradients[run.lanes] += samples
