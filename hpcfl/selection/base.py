"""Interface of selections, which choose the clients of a round.

A selection is the section ``[participation]`` of the experiment file. Its function
``choose`` returns client ids, given the server's knowledge. Availability, dropout and
waiting are the same for all selections.

Every rank calls the function, and a resumed run calls it again for earlier rounds. It
must therefore depend only on its arguments and draw random numbers from
``Known.random``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, fsum

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcfl.experiment import sections
from hpcfl.rows import randomness

MANY = 100_000  # number of clients above which no order of all clients is drawn


class LossReports:
    """Training losses that clients have reported to the server.

    Attributes:
        losses: mean loss of each client's last recorded training on its own samples,
            float64 [clients]; NaN without a report.
        last_rounds: round of that report, int64 [clients]; 0 without a report.
        times: number of each client's reports, int64 [clients].
        totals: sum of samples times loss over the clients of each round.
    """

    def __init__(self, samples: NDArray[np.int64]) -> None:
        """Begin without reports.

        Args:
            samples: number of samples of each client, int64 [clients].
        """
        clients = len(samples)
        self._samples = samples
        self.losses = np.full(clients, np.nan)
        self.last_rounds = np.zeros(clients, np.int64)
        self.times = np.zeros(clients, np.int64)
        self.totals: list[float] = []
        self._history: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    @property
    def rounds(self) -> int:
        """Return the number of rounds with reports."""
        return len(self.totals)

    @property
    def history(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return all reports in order: ids, int64 [n], and losses, float64 [n]."""
        ids = [np.zeros(0, np.int64), *(ids for ids, _ in self._history)]
        losses = [np.zeros(0), *(losses for _, losses in self._history)]
        return np.concatenate(ids), np.concatenate(losses)

    def add(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """Record the reports of the next round.

        A loss that is NaN or infinite is recorded as 0. Otherwise a selection of large
        losses would always choose clients that diverged or have no training samples.

        Args:
            ids: ids of the clients, [n].
            losses: their losses, [n].
        """
        losses = np.nan_to_num(losses, nan=0.0, posinf=0.0, neginf=0.0)
        self.losses[ids] = losses
        self.last_rounds[ids] = self.rounds + 1
        self.times[ids] += 1
        self.totals.append(fsum(self._samples[ids] * losses))
        self._history.append((ids, losses))


@dataclass(frozen=True)
class Known:
    """Knowledge of the server when it chooses the clients of a round.

    Attributes:
        key: key of the draws: the number of the round, from 1, and further numbers for
            several choices in a round.
        seed: seed of the experiment.
        candidates: mask of the clients that may be chosen, bool [clients].
        samples: number of samples that each client uses in an epoch, int64 [clients].
        ticks: working time of each client with all epochs, in microseconds, int64
            [clients]; None unless the selection is ``by_time``.
        reports: losses that clients have reported so far; empty unless the selection is
            ``by_losses``.
    """

    key: tuple[int, ...]
    seed: int
    candidates: np.ndarray
    samples: np.ndarray
    ticks: np.ndarray | None
    reports: LossReports

    @property
    def round(self) -> int:
        """Return the number of the round, from 1."""
        return self.key[0]

    @cached_property
    def ids(self) -> np.ndarray:
        """Return the ids of the candidates, ascending."""
        return np.flatnonzero(self.candidates)

    def shuffle(self) -> np.ndarray:
        """Return the ids of the candidates in random order.

        The key determines one order of all clients, from which other clients are
        removed.
        """
        clients = len(self.candidates)
        order = randomness.permutation(clients, self.seed, "cohort", *self.key)
        allowed: np.ndarray = order[self.candidates[order]]
        return allowed

    def draw(self, count: int) -> np.ndarray:
        """Draw at most ``count`` ids of candidates uniformly without replacement.

        Up to ``MANY`` clients the result is the beginning of ``shuffle``. With more
        clients only ``count`` are drawn, because ordering a million clients takes
        longer than many a round.
        """
        if len(self.candidates) <= MANY:
            return self.shuffle()[:count]
        random = randomness.generator(self.seed, "cohort", *self.key)
        drawn: np.ndarray = random.choice(
            self.ids, min(count, len(self.ids)), replace=False
        )
        return drawn

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator of random numbers for a purpose."""
        return randomness.generator(self.seed, "selection", purpose, *self.key)


class Selection(sections.Participation, ABC):
    """Base class of selections.

    A subclass is a file with ``plugin = YourSelection`` at its end. Declared attributes
    become keys in ``[participation]``.

    Attributes:
        by_losses: whether the selection reads ``Known.reports``. Clients then send the
            mean loss of their training in addition to the method's message, one more
            float.
        by_time: whether the selection reads ``Known.ticks``.
    """

    @abstractmethod
    def choose(self, known: Known, count: int) -> np.ndarray | Sequence[int]:
        """Choose clients among the candidates.

        Args:
            known: knowledge of the server.
            count: maximum number of clients.

        Returns:
            Distinct ids of candidates: at least one, at most ``count``.
        """


class BestOfDrawn(Selection):
    """Base class of selections that draw more clients than needed and choose the best."""

    candidates: float = Field(
        2.0,
        ge=1,
        le=1e6,
        description="number of clients drawn for each client chosen",
    )

    def draw_candidates(self, known: Known, count: int) -> np.ndarray:
        """Return the ids of uniformly drawn clients, in the order of the draw.

        With ``candidates = 1`` only ``count`` clients are drawn, which is the uniform
        selection.
        """
        # 1.1 · 10 is above 11 in floating point, hence 1e-9.
        return known.draw(ceil(self.candidates * count - 1e-9))


def take_cheapest(ids: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` ids with the lowest costs; ties go to earlier ids.

    Args:
        ids: ids [n].
        costs: cost of each id, [n].
        count: number of ids to return.
    """
    chosen: np.ndarray = ids[np.argsort(costs, kind="stable")[:count]]
    return chosen
