"""Replacement of the attackers' updates in a round."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.updates.base import Attack, Context


@dataclass(frozen=True)
class Forgery:
    """An attack on updates, and the seed for drawing its attackers."""

    attack: Attack
    seed: int

    def find_attackers(self, context: Context) -> np.ndarray:
        """Return a mask of the context's clients that attack in its round, bool [n]."""
        if context.round < self.attack.since:
            return np.zeros(len(context.ids), bool)
        attackers = self.attack.find_attackers(self.seed, context.clients)
        return np.isin(context.ids, attackers)

    def forge_own(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates [n, P] on a client's rank after an attack that does not
        need the honest updates. Other attacks leave them unchanged.
        """
        attacks = self.find_attackers(context)
        if self.attack.needs_honest or not attacks.any():
            return updates
        positions = torch.from_numpy(np.flatnonzero(attacks)).to(updates.device)
        forged = self.attack.forge(updates[positions], None, context.select(attacks))
        return updates.index_copy(0, positions, forged.to(updates.dtype))

    def forge_knowingly(
        self, updates: Tensor, context: Context
    ) -> tuple[Tensor, np.ndarray]:
        """Return the updates [m, P] that are forged on rank 0, and a mask bool [n] of
        the rows of ``updates`` [n, P] that they replace.

        The result is empty if the attack does not need the honest updates, and in
        rounds without attackers, without honest clients or with a problem of the
        attack.
        """
        attacks = self.find_attackers(context)
        if not self._can_forge(attacks):
            return updates[:0], np.zeros(len(attacks), bool)
        own = updates[torch.from_numpy(attacks)]
        others = torch.from_numpy(np.flatnonzero(~attacks))
        honest = mixing.pick(updates, others)
        forged = self.attack.forge(own, honest, context.select(attacks))
        return forged.to(updates.dtype), attacks

    def _can_forge(self, attacks: np.ndarray) -> bool:
        """Return whether a round with the attackers bool [n] allows an attack that
        knows the honest updates.
        """
        attackers = int(attacks.sum())
        honest = len(attacks) - attackers
        if not self.attack.needs_honest or not attackers or not honest:
            return False
        return not self.attack.find_problem(attackers, honest)
