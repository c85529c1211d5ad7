"""The mini-batches of clients that train side by side, and counts of their gradients."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hpcfl.clients.batch_plan import MOST_GRADIENTS, BatchRun
from hpcfl.clients.execution import Kernel, Session, Work
from hpcfl.clients.samples import Samples
from hpcfl.rows import randomness


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
