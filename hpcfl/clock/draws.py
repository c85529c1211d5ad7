"""Who is drawn, who is lost at once, and who does less than all epochs.

Each is a function of the experiment's seed and a key, mostly the round, alone.
"""

from dataclasses import dataclass

import numpy as np

from hpcfl.experiment.sections import Participation
from hpcfl.rows import randomness

Key = tuple[int, ...]


@dataclass(frozen=True)
class Draws:
    """The draws of an experiment with so many clients."""

    participation: Participation
    clients: int
    seed: int

    def choose(self, candidates: np.ndarray, count: int, key: Key) -> np.ndarray:
        """At most ``count`` of the clients, drawn uniformly without replacement.

        Args:
            candidates: bool [clients], who may be drawn.

        Returns:
            Ids in the order in which they are drawn. It is one order of all clients for
            a key, from which those are left out who are no candidates.
        """
        order = randomness.permutation(self.clients, self.seed, "cohort", *key)
        allowed: np.ndarray = order[candidates[order]]
        return allowed[:count]

    def staying(self, drawn: np.ndarray, key: Key) -> np.ndarray:
        """Those of the ids ``drawn`` that are not lost before they begin.

        Each is lost with the probability ``participation.dropout``; the luckiest stays
        in any case.
        """
        dropout = self.participation.dropout
        if not dropout or not len(drawn):
            return drawn
        luck = self._uniform("dropout", key)[drawn]
        left: np.ndarray = drawn[luck >= min(dropout, luck.max())]
        return left

    def epoch_shares(self, chosen: np.ndarray, key: Key) -> np.ndarray | None:
        """The share of the epochs of each local training that each of the ``chosen``
        ids does, [n]; None where all do all.

        As in FedProx's experiments (Li et al., MLSys 2020): of the chosen, a share
        ``participation.stragglers`` does a number of epochs that is uniform in 1 … E.
        It is one share for all trainings that a method does in the round, those of
        heads or personal models too. Nobody is left out for it.
        """
        stragglers = self.participation.stragglers
        if not stragglers:
            return None
        luck = self._uniform("stragglers", key)
        share = self._uniform("pace", key)
        unlucky_first = np.argsort(luck[chosen], kind="stable")
        # 1e-9: 0.29 · 100 is 28.999… in floating point
        count = int(stragglers * len(chosen) + 1e-9)
        slow = unlucky_first[:count]
        shares = np.ones(len(chosen))
        shares[slow] = share[chosen[slow]]
        return shares

    def _uniform(self, purpose: str, key: Key) -> np.ndarray:
        """A number in [0, 1) of every client, [clients]."""
        return randomness.uniform(self.seed, purpose, *key, skip=0, count=self.clients)
