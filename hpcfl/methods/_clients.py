"""Sets of clients for a method's server hooks: the receivers of a message and the
senders of uploads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.setup import Setup
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class Audience:
    """Receivers of a message: ``ids`` [n] ascending, the cohort, or all clients in a
    scored round.

    A client's message must not depend on the other receivers: otherwise results would
    depend on the frequency of scoring. So an audience has no weights. ``setup`` has
    known facts about clients, such as their numbers of samples, ``setup.counts[ids]``
    [n, classes].

    Attributes:
        round: The round, from 1.
    """

    ids: np.ndarray
    setup: Setup
    round: int

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def are_newcomers(self) -> bool:
        """True for a message to newcomers, whose ids follow those of the others."""
        return bool((self.ids >= self.setup.clients).any())


@dataclass(frozen=True)
class Cohort:
    """Clients whose messages arrived: ``ids`` [n] ascending, ``counts`` [n, classes] of
    training samples.

    Attributes:
        uniform: True if all clients have equal weights in averages.
        round: As in ``Audience``.
    """

    ids: np.ndarray
    counts: Tensor
    setup: Setup
    round: int
    uniform: bool = False

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def shares(self) -> Tensor:
        """Relative weight of each client in an average, float64 [n]: its samples N_i,
        or 1 if uniform.
        """
        return (
            torch.ones(len(self.ids)).double()
            if self.uniform
            else self.counts.sum(dim=1)
        )

    @property
    def weights(self) -> Tensor:
        """Weights of the clients in an average, float64 [n], with sum one: N_i/ΣN, or
        1/n if uniform.
        """
        return self.shares / self.shares.sum()
