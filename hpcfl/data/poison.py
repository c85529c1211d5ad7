"""Attacks on data: changes of the attackers' training samples, and of test samples that
measure the attack's success.
"""

from dataclasses import dataclass

import numpy as np

from hpcfl.data.datasets import PATCHED
from hpcfl.data.shifts.base import Concept, Facts
from hpcfl.errors import UserError


class AttackFacts(Facts):
    """Facts about the data of an attack, with separate random keys and error messages."""

    def generator(self, purpose: str, *number: int) -> np.random.Generator:
        """Return a generator of random numbers for the attack."""
        return super().generator(f"attack, {purpose}", *number)

    def make_error(self, key: str, problem: str) -> UserError:
        """Return a UserError about a key of the attack."""
        return UserError(f"attack.{key}: {problem}")


@dataclass(frozen=True, eq=False)
class Poison:
    """A change of the attackers' training samples.

    Attributes:
        concept: change of a sample.
        attackers: ids of the attackers, ascending.
        since: first round with changed samples.
        share: share of an attacker's samples that is changed, at least one sample.
        facts: facts about the data.
        is_scored: Whether changed test samples measure the attack's success.
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
        """Return whether each of a client's samples is changed in a round, 0 or 1,
        int64 [n].

        The samples with the smallest random numbers are changed; each sample has a
        fixed one.

        Args:
            part: part of the client's samples, such as "train".
            client: id of the client.
            numbers: sample numbers in the data set, [n].
            round: number of the round.
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
