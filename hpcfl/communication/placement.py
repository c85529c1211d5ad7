"""Which client lives on which rank: largest first, each to the least loaded worker, the same
on every rank."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Placement:
    """``owner`` [clients] holds each client's rank; it stays the same for the whole run."""

    owner: np.ndarray
    size: int

    def clients_of(self, rank: int) -> np.ndarray:
        """The ids of a rank's clients, ascending."""
        return np.flatnonzero(self.owner == rank)


def place(cost: Sequence[float], size: int) -> Placement:
    """Clients with costs (local steps a round) on the worker ranks 1 … size − 1; alone, on rank 0.

    Longest-processing-time-first keeps the slowest rank within 4/3 of the best possible (Graham, 1969).
    Ties go to the lower client id and the lower rank, so the result depends on nothing but its arguments.
    """
    workers = range(1, size) if size > 1 else range(1)
    loads = [(0.0, rank) for rank in workers]
    owner = np.zeros(len(cost), dtype=np.int64)
    for client in sorted(range(len(cost)), key=lambda i: (-cost[i], i)):
        load, rank = heapq.heappop(loads)
        owner[client] = rank
        heapq.heappush(loads, (load + cost[client], rank))
    return Placement(owner, size)
