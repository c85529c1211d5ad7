"""The draws of a round: chosen clients, lost clients and stragglers.

Each draw is a function of the experiment's seed and a key, usually the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcfl.clock.selection.base import Known, LossReports, Selection
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.rows import randomness

Key = tuple[int, ...]


def _nothing() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Draws:
    """The draws of an experiment with so many clients.

    Attributes:
        samples, ticks, told: as in ``Known``; values that the selection does not read
            may be left out.
    """

    participation: Selection
    clients: int
    seed: int
    samples: np.ndarray = field(default_factory=_nothing)
    ticks: np.ndarray | None = None
    told: LossReports = field(default_factory=lambda: LossReports(_nothing()))

    def choose(self, candidates: np.ndarray, count: int, key: Key) -> np.ndarray:
        """Return at most ``count`` clients from the experiment's selection.

        Args:
            candidates: bool [clients], the clients that may be chosen.

        Returns:
            Ids. Raises UserError for other results of a user's own selection.
        """
        known = Known(key, self.seed, candidates, self.samples, self.ticks, self.told)
        with user_code.locate_errors():
            chosen = self.participation.choose(known, count)
        return self._checked(chosen, candidates, count)

    def _checked(
        self, returned: np.ndarray | Sequence[int], candidates: np.ndarray, count: int
    ) -> np.ndarray:
        """Return the selection's result as ids. Raises UserError."""
        ids = np.asarray(returned)
        if not ids.size and not candidates.any():
            return _nothing()
        if not ids.size:
            problem = "nobody"
        elif ids.ndim != 1 or ids.dtype.kind not in "iu":
            problem = f"{ids.dtype} of shape {ids.shape}, not a list of ids"
        elif len(ids) > count:
            problem = f"{len(ids)} clients, at most {count} are asked for"
        elif ids.min() < 0 or ids.max() >= self.clients:
            problem = f"a client that there is not, of {self.clients}"
        elif not candidates[ids].all():
            problem = f"client {ids[~candidates[ids]][0]}, who is not there"
        elif len(np.unique(ids)) < len(ids):
            problem = "a client more than once"
        else:
            return ids.astype(np.int64, copy=False)
        place = user_code.find_definition(type(self.participation))
        where = f"{place}: " if place else ""
        name = self.participation.select
        raise UserError(f"{where}participation.select = '{name}': chose {problem}")

    def staying(self, drawn: np.ndarray, key: Key) -> np.ndarray:
        """Return the ids in ``drawn`` of clients that are not lost before they begin.

        Each is lost with the probability ``participation.dropout``; at least one stays.
        """
        dropout = self.participation.dropout
        if not dropout or not len(drawn):
            return drawn
        luck = self._uniform("dropout", key)[drawn]
        left: np.ndarray = drawn[luck >= min(dropout, luck.max())]
        return left

    def epoch_shares(self, chosen: np.ndarray, key: Key) -> np.ndarray | None:
        """Return the share of epochs of each ``chosen`` client's trainings, [n]; None
        for all.

        A share ``participation.stragglers`` of the chosen clients does a number of
        epochs that is uniform in 1 … E. This follows FedProx's experiments (Li et al.,
        MLSys 2020). One share holds for all trainings of a method in the round,
        including those of heads or personal models. Stragglers are not left out of the
        round.
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
        """Return a number in [0, 1) for every client, [clients]."""
        return randomness.uniform(self.seed, purpose, *key, skip=0, count=self.clients)
