"""What is known before the first round, the same on the server and on the clients."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpcfl.experiment.sections import Training
from hpcfl.rows import randomness
from hpcfl.rows.layout import Layout, to_row


@dataclass(frozen=True)
class Setup:
    """``counts`` [clients, classes] of training samples, the model's layout, and the experiment's numbers.

    participation: the fraction of clients in a round. build: makes the adapted model of one client.
    """

    layout: Layout
    counts: Tensor
    rounds: int
    seed: int
    build: Callable[[], nn.Module]
    training: Training
    participation: float = 1.0

    @property
    def clients(self) -> int:
        return self.counts.shape[0]

    @property
    def classes(self) -> int:
        return self.counts.shape[1]

    def initial(self, draw: int = 0) -> Tensor:
        """Initial parameters ``[P]``: the one draw shared by server and clients, or a further,
        different one."""
        with randomness.seeded(self.seed, "model", draw):
            return to_row(self.layout, self.build())

    def normal(self, *shape: int, key: tuple[int | str, ...]) -> Tensor:
        """Standard normal numbers of this shape, the same for the same key: a purpose, then
        perhaps a round."""
        return torch.from_numpy(randomness.generator(self.seed,
                                                     "normal", *key).standard_normal(shape)).float()

    def learning_rate(self, round: int) -> float:
        """The local learning rate of a round, ``lr · lr_decay^(round − 1)``."""
        return self.training.lr * self.training.lr_decay ** (round - 1)
