"""The placement of clients on ranks, which every rank computes by itself."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Placement:
    """The rank of each client, ``owner`` [clients], among ``size`` ranks, fixed for a
    run.
    """

    owner: np.ndarray
    size: int

    def clients_of(self, rank: int) -> np.ndarray:
        """Return the ids of a rank's clients, ascending."""
        return np.flatnonzero(self.owner == rank)

    @property
    def idle(self) -> list[int]:
        """Return the worker ranks that have no client."""
        return [rank for rank in range(1, self.size) if rank not in self.owner]


def place(
    cost: Sequence[float], size: int, kind: Sequence[Any] | None = None
) -> Placement:
    """Place clients on the worker ranks 1 … size − 1, or on rank 0 if it is alone.

    The most costly clients come first, each to the least loaded worker. This keeps the
    slowest rank within 4/3 of the optimum (Graham, 1969). Ties go to the lower client
    id and the lower rank, so the result depends on the arguments only. Clients of equal
    cost then change places, so that those of one kind share ranks; all loads stay.

    cost: the local steps in an epoch of each client. size: the number of ranks. kind: a
    sortable value of each client; without it no clients change places.
    """
    workers = range(1, size) if size > 1 else range(1)
    loads = [(0.0, rank) for rank in workers]
    owner = np.zeros(len(cost), dtype=np.int64)
    for client in sorted(range(len(cost)), key=lambda i: (-cost[i], i)):
        load, rank = heapq.heappop(loads)
        owner[client] = rank
        heapq.heappush(loads, (load + cost[client], rank))
    if kind is not None:
        for _, equals in groupby(
            sorted(range(len(cost)), key=lambda i: (cost[i], kind[i], i)),
            key=lambda i: cost[i],
        ):
            clients = list(equals)
            owner[clients] = np.sort(owner[clients])
    return Placement(owner, size)
