"""The change of samples by an attack: of training samples of the attackers, and of test
samples that show its success.
"""

from dataclasses import dataclass

import numpy as np

from hpcfl.data.datasets import PATCHED
from hpcfl.data.shifts.base import Concept, Facts
from hpcfl.errors import UserError


class AttackFacts(Facts):
    """Facts about the data of an attack, whose draws and errors have names of their
    own.
    """

    def generator(self, purpose: str, *number: int) -> np.random.Generator:
        """Return random numbers of the attack, as for a shift."""
        return super().generator(f"attack, {purpose}", *number)

    def wrong(self, key: str, problem: str) -> UserError:
        """Return the error about a key of the attack."""
        return UserError(f"attack.{key}: {problem}")


@dataclass(frozen=True, eq=False)
class Poison:
    """A change of the attackers' training samples.

    Attributes:
        concept: what becomes of a sample.
        attackers: ids of the clients, ascending.
        since: the first round in which samples are changed.
        share: of an attacker's samples, the share that is changed, at least one.
        facts: of the data.
        is_scored: whether test samples show the success of the attack.
    """

    concept: Concept
    attackers: np.ndarray
    since: int
    share: float
    facts: Facts
    is_scored: bool = False

    def list_states(
        self, part: str, client: int, numbers: np.ndarray, round: int
    ) -> np.ndarray:
        """Return which of a client's samples are changed in a round, 0 or 1, int64 [n].

        numbers: [n], of the samples in the data set. The changed ones are those with
        the least of random numbers that belong to the samples.
        """
        states = np.zeros(len(numbers), np.int64)
        if part == PATCHED:
            return states + 1
        if part != "train" or round < self.since or client not in self.attackers:
            return states
        if self.share == 1:
            return states + 1
        draws = [self.facts.generator("order", one).random() for one in numbers]
        count = max(1, int(self.share * len(numbers) + 0.5))
        states[np.argsort(draws, kind="stable")[:count]] = 1
        return states
