"""Each class spread over the clients in Dirichlet proportions, balanced (protocols.md
D2).

Balanced: a client that already holds the mean number of samples takes no more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcfl.errors import UserError

CAP = 10_000  # attempts at a draw

# (class, the numbers of its chunks, number of classes that each client holds so far
# [clients]) → the number of the chunk that each client gets
Rearrange = Callable[[int, list[int], np.ndarray], list[int]]


@dataclass(frozen=True)
class Spread:
    """Chunks of each class for each client; samples are listed only if the draw is
    accepted.

    sizes: how many samples each client holds, int64 [clients].
    chunks: of each class its shuffled samples, and where in them each client's begin
        and end [clients].
    """

    sizes: np.ndarray
    chunks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def samples(self) -> list[np.ndarray]:
        """Return the samples of each client, int64."""
        held = []
        for client in range(len(self.sizes)):
            parts = [
                of_class[begin[client] : end[client]]
                for of_class, begin, end in self.chunks
            ]
            held.append(np.concatenate(parts))
        return held


def by_class(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the positions of each class's samples in ``labels``, int64."""
    return [np.flatnonzero(labels == k) for k in range(classes)]


def spread(
    pools: list[np.ndarray],
    clients: int,
    beta: float,
    generator: np.random.Generator,
    rearrange: Rearrange = lambda k, chunks, held: chunks,
) -> Spread:
    """Spread each class over the clients with shares from Dir(``beta``).

    pools: as ``by_class`` gives them. rearrange: changes who gets which chunk of a
    class. Raises UserError where ``beta`` is too small for floating-point numbers.
    """
    total, chunks = sum(map(len, pools)), []
    sizes, held = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for k, pool in enumerate(pools):
        samples = generator.permutation(pool)
        below_mean = sizes < total / clients
        if not below_mean.any():
            # Nothing is left: this class and those after it have no samples.
            below_mean = ~below_mean
        shares = shares_of(below_mean, beta, generator)
        # without the last cut: the last client gets what rounding leaves
        cuts = np.floor(np.cumsum(shares) * len(samples)).astype(np.int64)[:-1]
        order = rearrange(k, list(range(clients)), held)
        begin = np.array([0, *cuts])[order]
        end = np.array([*cuts, len(samples)])[order]
        sizes += end - begin
        held += end > begin
        chunks.append((samples, begin, end))
    return Spread(sizes, chunks)


def shares_of(
    below_mean: np.ndarray, beta: float, generator: np.random.Generator
) -> np.ndarray:
    """Draw each client's share of a class, float64 [clients], summing to one.

    below_mean: bool [clients], whether a client holds less than the mean number; the
    others get nothing.
    """
    for _ in range(CAP):
        shares = generator.dirichlet(np.full(len(below_mean), beta)) * below_mean
        if (
            shares.sum() > 0
        ):  # for a small beta, the shares of all who may take can underflow to zero
            normalised: np.ndarray = shares / shares.sum()
            return normalised
    raise UserError(
        f"partition.beta = {beta} is too small: no client below the mean was drawn in "
        f"{CAP} attempts"
    )
