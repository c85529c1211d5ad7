"""Each class spread over the clients in Dirichlet proportions, balanced: a client that holds the mean
number takes no more."""

from collections.abc import Callable

import numpy as np

from hpcfl.errors import UserError

CAP = 10_000

Chunks = list[np.ndarray]  # one class's samples, a part for each client
# of class k, its chunks, classes held so far [clients]
Rearrange = Callable[[int, Chunks, np.ndarray], Chunks]


def spread(labels: np.ndarray, classes: int, clients: int, beta: float, generator: np.random.Generator,
           rearrange: Rearrange = lambda k, chunks, held: chunks) -> list[np.ndarray]:
    """The samples of each client, int64. Raises UserError where ``beta`` is too small for
    floating-point numbers."""
    parts: list[Chunks] = [[] for _ in range(clients)]
    sizes, held = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for k in range(classes):
        samples = generator.permutation(np.flatnonzero(labels == k))
        shares = shares_of(sizes < len(labels) / clients, beta, generator)
        # the last client gets the rest
        cuts = np.floor(np.cumsum(shares) * len(samples)).astype(np.int64)[:-1]
        for client, chunk in enumerate(rearrange(k, np.split(samples, cuts), held)):
            parts[client].append(chunk)
            sizes[client] += len(chunk)
            held[client] += len(chunk) > 0
    return [np.concatenate(part) for part in parts]


def shares_of(below_mean: np.ndarray, beta: float, generator: np.random.Generator) -> np.ndarray:
    """Each client's share of a class, float64 [clients]; a client that holds the mean number gets nothing."""
    for _ in range(CAP):
        shares = generator.dirichlet(np.full(len(below_mean), beta)) * below_mean
        if shares.sum() > 0:  # for a small beta, the shares of all who may take can underflow to zero
            normed: np.ndarray = shares / shares.sum()
            return normed
    raise UserError(f"partition.beta = {beta} is too small: no client below the mean was drawn in "
                    f"{CAP} attempts")
