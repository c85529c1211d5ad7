"""The attackers of a round, and the replacement of their updates."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.updates.base import Attack, Context


@dataclass(frozen=True)
class Forgery:
    """An attack on updates, with the seed that draws its attackers."""

    attack: Attack
    seed: int

    def find_attackers(self, context: Context) -> np.ndarray:
        """Return which of the context's clients attack in its round, bool [n]."""
        if context.round < self.attack.since:
            return np.zeros(len(context.ids), bool)
        attackers = self.attack.find_attackers(self.seed, context.clients)
        return np.isin(context.ids, attackers)

    def forge_own(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates [n, P] on a client's rank. An attack that needs the honest
        updates leaves them as they are.
        """
        attacks = self.find_attackers(context)
        if self.attack.needs_honest or not attacks.any():
            return updates
        positions = torch.from_numpy(np.flatnonzero(attacks)).to(updates.device)
        forged = self.attack.forge(updates[positions], None, context.only(attacks))
        return updates.index_copy(0, positions, forged.to(updates.dtype))

    def forge_knowingly(
        self, updates: Tensor, context: Context
    ) -> tuple[Tensor, np.ndarray]:
        """Return the forged updates [m, P] on rank 0, and which of ``updates`` [n, P]
        they replace, bool [n].

        There is none in a round without attackers or without honest clients, in a round
        in which the attack is impossible, and for an attack that needs no honest
        updates.
        """
        attacks = self.find_attackers(context)
        if not self._can_forge(attacks):
            attacks = np.zeros(len(attacks), bool)
        own = updates[torch.from_numpy(attacks)]
        if not attacks.any():
            return own, attacks
        others = torch.from_numpy(np.flatnonzero(~attacks))
        honest = mixing.pick(updates, others)
        forged = self.attack.forge(own, honest, context.only(attacks))
        return forged.to(updates.dtype), attacks

    def _can_forge(self, attacks: np.ndarray) -> bool:
        """Return whether attackers, bool [n], can forge updates knowingly in a round."""
        attackers = int(attacks.sum())
        honest = len(attacks) - attackers
        if not self.attack.needs_honest or not attackers or not honest:
            return False
        return not self.attack.find_problem(attackers, honest)
