"""The plan of a round, and the draws that it follows from: chosen clients, lost clients
and stragglers.

Each draw is a function of the experiment's seed and a key, usually the round. So every
rank makes the same draws without communication, and so does a resumed run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config
from hpcfl.rows import randomness
from hpcfl.selection.base import Known, LossReports, Selection

Key = tuple[int, ...]


def no_clients() -> np.ndarray:
    """Return an empty array of ids."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RoundPlan:
    """Participants of a round. Ids are ascending.

    number: of the round, from 1.
    cohort: ids [n] of the clients that train.
    audience: ids [m] of the clients that get a message: the cohort, and the observers,
        whose models are only scored.
    scored: whether models are scored.
    newcomers: ids of the clients that were never trained with and are scored after the
        last round.
    shares: of the epochs of each local training that each of the cohort does, [n]; None
        where all do all.
    final: whether it is the scoring after the last aggregation.
    """

    number: int
    cohort: np.ndarray
    audience: np.ndarray
    scored: bool
    newcomers: np.ndarray = field(default_factory=no_clients)
    shares: np.ndarray | None = None
    final: bool = False

    @property
    def name(self) -> str:
        """Name of the round in messages."""
        return "after the last round" if self.final else f"round {self.number}"

    def pace(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the shares of some of the cohort, [k]. Return None where all do all
        epochs.
        """
        if self.shares is None:
            return None
        return self.shares[np.searchsorted(self.cohort, ids)]

    def only(self, ids: np.ndarray) -> "RoundPlan":
        """Return the plan with these clients only, all of which are scored."""
        trained = np.intersect1d(ids, self.cohort)
        return replace(
            self,
            cohort=trained,
            audience=ids,
            scored=True,
            shares=self.pace(trained),
        )


def is_scored(config: Config, number: int) -> bool:
    """Return whether models are scored in a round."""
    return number % config.evaluation.every == 0 or number == config.rounds


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
    samples: np.ndarray = field(default_factory=no_clients)
    ticks: np.ndarray | None = None
    told: LossReports = field(default_factory=lambda: LossReports(no_clients()))

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
            return no_clients()
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
