"""The contract of a selection: which of the clients that are there take part.

A selection is the section ``[participation]`` of the experiment file, and its one
function chooses ids from what the server knows. All else is the same for all of them:
who is there to be chosen, who is lost after it, and who is waited for.

Every rank calls the function, and a resumed run calls it again for the rounds that it
has played. So it must be a function of what it is given alone, and draw its random
numbers from ``Known.random``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcfl.clock.selection._told import Told
from hpcfl.experiment import sections
from hpcfl.rows import randomness

__all__ = ["Known", "Selection", "Told"]


@dataclass(frozen=True)
class Known:
    """What the server knows when it chooses who takes part in a round.

    Attributes:
        key: of what is drawn: the number of the round, from 1, and what sets it apart
            from other choices in it.
        seed: the experiment's.
        candidates: bool [clients], who may be chosen.
        samples: int64 [clients], on how many samples each trains in an epoch.
        ticks: int64 [clients], microseconds for which each is at work if it does all
            epochs; None without ``[time]``.
        told: what clients have told of their trainings so far; nothing unless the
            selection is ``by_losses``.
    """

    key: tuple[int, ...]
    seed: int
    candidates: np.ndarray
    samples: np.ndarray
    ticks: np.ndarray | None
    told: Told

    @property
    def round(self) -> int:
        """The number of the round, from 1."""
        return self.key[0]

    @cached_property
    def ids(self) -> np.ndarray:
        """The ids of the candidates, ascending."""
        return np.flatnonzero(self.candidates)

    def order(self) -> np.ndarray:
        """The ids of the candidates in random order.

        It is one order of all clients for a key, from which those are left out who are
        no candidates.
        """
        clients = len(self.candidates)
        order = randomness.permutation(clients, self.seed, "cohort", *self.key)
        allowed: np.ndarray = order[self.candidates[order]]
        return allowed

    def random(self, purpose: str) -> np.random.Generator:
        """Random numbers for a purpose."""
        return randomness.generator(self.seed, "selection", purpose, *self.key)


class Selection(sections.Participation, ABC):
    """Subclass it in one file with ``plugin = YourSelection`` at its end. What is
    declared beside ``choose`` are its own keys in ``[participation]``.

    Attributes:
        by_losses: whether it reads ``Known.told``. Then clients send the mean loss of
            their training beside what the method sends, which is one float more.
        by_time: whether it reads ``Known.ticks``.
    """

    @abstractmethod
    def choose(self, known: Known, count: int) -> np.ndarray | Sequence[int]:
        """At most ``count`` ids of candidates, each once; at least one."""
