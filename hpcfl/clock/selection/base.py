"""The contract of a selection: which of the available clients take part.

A selection is the section ``[participation]`` of the experiment file, and its one
function chooses ids from the server's knowledge. Availability, dropout and waiting are
the same for all selections.

Every rank calls the function, and a resumed run calls it again for earlier rounds. It
must therefore depend on its arguments only and draw random numbers from
``Known.random``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcfl.clock.selection._reports import LossReports
from hpcfl.experiment import sections
from hpcfl.rows import randomness

__all__ = ["Known", "LossReports", "Selection"]

MANY = 100_000  # clients


@dataclass(frozen=True)
class Known:
    """The server's knowledge when it chooses the clients of a round.

    Attributes:
        key: of the draws: the number of the round, from 1, and further numbers for
            several choices in a round.
        seed: the experiment's.
        candidates: bool [clients], the clients that may be chosen.
        samples: int64 [clients], the samples of an epoch of each client.
        ticks: int64 [clients], the working microseconds of each client with all epochs;
            None without ``[time]``.
        told: the clients' reports of their trainings so far; empty unless the selection
            is ``by_losses``.
    """

    key: tuple[int, ...]
    seed: int
    candidates: np.ndarray
    samples: np.ndarray
    ticks: np.ndarray | None
    told: LossReports

    @property
    def round(self) -> int:
        """Return the number of the round, from 1."""
        return self.key[0]

    @cached_property
    def ids(self) -> np.ndarray:
        """Return the ids of the candidates, ascending."""
        return np.flatnonzero(self.candidates)

    def order(self) -> np.ndarray:
        """Return the ids of the candidates in random order.

        The key determines one order of all clients; clients that are no candidates are
        left out.
        """
        clients = len(self.candidates)
        order = randomness.permutation(clients, self.seed, "cohort", *self.key)
        allowed: np.ndarray = order[self.candidates[order]]
        return allowed

    def drawn(self, count: int) -> np.ndarray:
        """Return at most ``count`` ids of candidates, drawn uniformly without
        replacement.

        Up to ``MANY`` clients they are the first in ``order``. Ordering a million
        clients takes longer than many a round, so that only ``count`` are drawn of more
        clients.
        """
        if len(self.candidates) <= MANY:
            return self.order()[:count]
        random = randomness.generator(self.seed, "cohort", *self.key)
        drawn: np.ndarray = random.choice(
            self.ids, min(count, len(self.ids)), replace=False
        )
        return drawn

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator of random numbers for a purpose."""
        return randomness.generator(self.seed, "selection", purpose, *self.key)


class Selection(sections.Participation, ABC):
    """The base class of selections.

    Subclass it in one file with ``plugin = YourSelection`` at its end. Further declared
    attributes are its own keys in ``[participation]``.

    Attributes:
        by_losses: whether it reads ``Known.told``. Clients then send the mean loss of
            their training in addition to the method's message, one more float.
        by_time: whether it reads ``Known.ticks``.
    """

    @abstractmethod
    def choose(self, known: Known, count: int) -> np.ndarray | Sequence[int]:
        """Return at most ``count`` ids of candidates, each once; at least one."""
