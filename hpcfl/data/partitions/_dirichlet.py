"""Each class spread over the clients in Dirichlet proportions, balanced (protocols.md D2).

Balanced: a client that already holds the mean number of samples takes no more.
"""

from collections.abc import Callable

import numpy as np

from hpcfl.errors import UserError

CAP = 10_000  # attempts at a draw

Chunks = list[np.ndarray]  # one class's samples, a chunk for each client
# (class, its chunks, number of classes that each client holds so far [clients]) → its chunks
Rearrange = Callable[[int, Chunks, np.ndarray], Chunks]


def spread(labels: np.ndarray, classes: int, clients: int, beta: float, generator: np.random.Generator,
           rearrange: Rearrange = lambda k, chunks, held: chunks) -> list[np.ndarray]:
    """The samples of each client, int64, with shares of each class from Dir(``beta``).

    rearrange: changes who gets which chunk of a class. Raises UserError where ``beta`` is too small for
    floating-point numbers.
    """
    parts: list[Chunks] = [[] for _ in range(clients)]
    sizes, held = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for k in range(classes):
        samples = generator.permutation(np.flatnonzero(labels == k))
        shares = shares_of(sizes < len(labels) / clients, beta, generator)
        # without the last cut: the last client gets what rounding leaves
        cuts = np.floor(np.cumsum(shares) * len(samples)).astype(np.int64)[:-1]
        for client, chunk in enumerate(rearrange(k, np.split(samples, cuts), held)):
            parts[client].append(chunk)
            sizes[client] += len(chunk)
            held[client] += len(chunk) > 0
    return [np.concatenate(part) for part in parts]


def shares_of(below_mean: np.ndarray, beta: float, generator: np.random.Generator) -> np.ndarray:
    """Each client's share of a class, float64 [clients], summing to one.

    below_mean: bool [clients], whether a client holds less than the mean number; the others get nothing.
    """
    for _ in range(CAP):
        shares = generator.dirichlet(np.full(len(below_mean), beta)) * below_mean
        if shares.sum() > 0:  # for a small beta, the shares of all who may take can underflow to zero
            normalised: np.ndarray = shares / shares.sum()
            return normalised
    raise UserError(f"partition.beta = {beta} is too small: no client below the mean was drawn in "
                    f"{CAP} attempts")
