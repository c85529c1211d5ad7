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
from math import ceil, fsum

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcfl.experiment import sections
from hpcfl.rows import randomness

MANY = 100_000  # clients


class LossReports:
    """The clients' reports of their training losses that the server has received.

    Attributes:
        losses: float64 [clients], the mean loss of each client's last counted training
            on its own samples; NaN without a report.
        last_rounds: int64 [clients], the round of that report; 0 without one.
        times: int64 [clients], the number of its counted trainings.
        totals: the sum of samples times loss over the clients of each round.
    """

    def __init__(self, samples: NDArray[np.int64]) -> None:
        """Set the number of samples of each client, int64 [clients]."""
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
        """Return all reports in order: the clients, int64 [n], and their losses,
        float64 [n].
        """
        ids = [np.zeros(0, np.int64), *(ids for ids, _ in self._history)]
        losses = [np.zeros(0), *(losses for _, losses in self._history)]
        return np.concatenate(ids), np.concatenate(losses)

    def add(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """Record the reports of the clients ``ids`` of the next round.

        A loss that is no number counts as 0. Otherwise a selection of large losses
        would always choose clients that diverged or have no training samples.
        """
        losses = np.nan_to_num(losses, nan=0.0, posinf=0.0, neginf=0.0)
        self.losses[ids] = losses
        self.last_rounds[ids] = self.rounds + 1
        self.times[ids] += 1
        self.totals.append(fsum(self._samples[ids] * losses))
        self._history.append((ids, losses))


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
        reports: the clients' reports of their trainings so far; empty unless the selection
            is ``by_losses``.
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
        by_losses: whether it reads ``Known.reports``. Clients then send the mean loss of
            their training in addition to the method's message, one more float.
        by_time: whether it reads ``Known.ticks``.
    """

    @abstractmethod
    def choose(self, known: Known, count: int) -> np.ndarray | Sequence[int]:
        """Return at most ``count`` ids of candidates, each once; at least one."""


class BestOfDrawn(Selection):
    """The base of selections that draw more clients than they need and take the best."""

    candidates: float = Field(
        2.0,
        ge=1,
        le=1e6,
        description="times as many clients are drawn as are chosen of them",
    )

    def drawn(self, known: Known, count: int) -> np.ndarray:
        """Return the ids of uniformly drawn clients, in the order of the draw.

        With ``candidates = 1`` only ``count`` are drawn, which is the uniform choice.
        """
        # 1e-9: 1.1 · 10 is above 11 in floating point
        return known.drawn(ceil(self.candidates * count - 1e-9))


def take_cheapest(ids: np.ndarray, costs: np.ndarray, count: int) -> np.ndarray:
    """Return the ``count`` ids [n] with the least ``costs`` [n]; earlier ones win ties."""
    chosen: np.ndarray = ids[np.argsort(costs, kind="stable")[:count]]
    return chosen
