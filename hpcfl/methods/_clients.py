"""Clients as a method's server side sees them: those that it sends to, and those that
it hears from.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.setup import Setup
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class Audience:
    """Whom a message goes to: ``ids`` [n] ascending, the cohort, or in a scored round
    all clients.

    What one client gets must not depend on who else gets something, or results would
    depend on how often a run is scored: so an audience has no weights. What is known of
    clients lies in ``setup``, such as their numbers of samples, ``setup.counts[ids]``
    [n, classes].

    Attributes:
        round: from 1.
    """

    ids: np.ndarray
    setup: Setup
    round: int

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def are_newcomers(self) -> bool:
        """Whether the message goes to newcomers, whose ids follow those of the
        others.
        """
        return bool((self.ids >= self.setup.clients).any())


@dataclass(frozen=True)
class Cohort:
    """The clients whose messages arrived: ``ids`` [n] ascending, ``counts`` [n,
    classes] of training samples.

    Attributes:
        uniform: all weigh the same in averages.
        round: as in ``Audience``.
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
        """How much each client counts in an average, float64 [n]: its samples N_i, or 1
        if uniform.
        """
        return (
            torch.ones(len(self.ids)).double()
            if self.uniform
            else self.counts.sum(dim=1)
        )

    @property
    def weights(self) -> Tensor:
        """The clients' weights in an average, float64 [n], summing to one: N_i/ΣN, or
        1/n if uniform.
        """
        return self.shares / self.shares.sum()
