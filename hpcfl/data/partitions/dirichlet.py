"""Dirichlet partitions: each class is divided among the clients in Dirichlet
proportions, with balanced sizes (protocols.md D2, D3).

Balanced: a client that holds the mean number of samples receives no more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Assignment, Draw, MergedScheme, Scheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness

CAP = 10_000  # largest number of attempts
# After TRIAL attempts the scheme gives up if on average more than HOPELESS clients got
# too few samples. Their number is nearly a Poisson variable: with a mean of 20 the
# probability that any further attempt succeeds is at most CAP · exp(−20) = 2e-5.
TRIAL = 100
HOPELESS = 20
ATTEMPTS = 3  # attempts of dirichlet-min

# (class, numbers of its chunks [clients], each client's number of classes so far
# [clients]) → number of each client's chunk
Rearrange = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Spread:
    """A division of each class into one chunk per client.

    Attributes:
        sizes: number of samples of each client, int64 [clients].
        chunks: for each class the shuffled samples, and begin and end of each client's
            chunk [clients].
    """

    sizes: np.ndarray
    chunks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def list_samples(self) -> list[np.ndarray]:
        """Return the samples of each client, int64."""
        held = []
        for client in range(len(self.sizes)):
            parts = [
                of_class[begin[client] : end[client]]
                for of_class, begin, end in self.chunks
            ]
            held.append(np.concatenate(parts))
        return held


def group_by_class(labels: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the positions of each class's samples in ``labels``, int64."""
    return [np.flatnonzero(labels == k) for k in range(classes)]


def spread(
    pools: list[np.ndarray],
    clients: int,
    beta: float,
    generator: np.random.Generator,
    rearrange: Rearrange = lambda k, chunks, held: chunks,
) -> Spread:
    """Divide each class among the clients with shares from Dir(``beta``).

    Args:
        pools: samples of each class, as from ``group_by_class``.
        clients: number of clients.
        beta: concentration.
        generator: generator of random numbers.
        rearrange: function that changes the order of a class's chunks.

    Raises:
        UserError: ``beta`` is too small for floating-point numbers.
    """
    total, chunks = sum(map(len, pools)), []
    sizes, held = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for k, pool in enumerate(pools):
        samples = pool.copy()
        generator.shuffle(samples)
        below_mean = sizes < total / clients
        if not below_mean.any():
            # All samples are assigned: this class and all later ones are empty.
            below_mean = ~below_mean
        shares = draw_shares(below_mean, beta, generator)
        cuts = np.zeros(clients + 1, np.int64)
        cuts[1:] = np.cumsum(shares) * len(samples)
        cuts[-1] = len(samples)  # the last client gets the remainder of rounding
        order = rearrange(k, np.arange(clients), held)
        begin, end = cuts[:-1][order], cuts[1:][order]
        sizes += end - begin
        held += end > begin
        chunks.append((samples, begin, end))
    return Spread(sizes, chunks)


def draw_shares(
    below_mean: np.ndarray, beta: float, generator: np.random.Generator
) -> np.ndarray:
    """Draw each client's share of a class.

    Args:
        below_mean: Whether each client holds less than the mean number, bool [clients];
            other clients receive nothing.
        beta: concentration.
        generator: generator of random numbers.

    Returns:
        The shares, float64 [clients], with sum one.
    """
    for _ in range(CAP):
        shares = generator.dirichlet(np.full(len(below_mean), beta)) * below_mean
        # with a small beta the shares of all clients below the mean can underflow to 0
        if shares.sum() > 0:
            normalised: np.ndarray = shares / shares.sum()
            return normalised
    raise UserError(
        f"partition.beta = {beta} is too small: in {CAP} attempts no client below the mean "
        "size got a share"
    )


class Dirichlet(MergedScheme):
    """PFLlib's partition: each class is divided among the clients in Dirichlet
    proportions (protocols.md D2).
    """

    scheme: str = "dirichlet"
    beta: float = Field(
        0.1,
        gt=0,
        description="concentration: the smaller, the fewer classes a client holds",
    )

    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        # at least one training and one test sample
        least = max(2, self.compute_least_samples(len(labels)))
        pools = group_by_class(labels, classes)
        # Small data sets need many attempts: with 1,797 digits, 20 clients and beta 0.1
        # one in a thousand is accepted.
        short = 0  # clients with too few samples, over all attempts
        for attempt in range(1, CAP + 1):
            drawn = spread(pools, self.clients, self.beta, generator)
            missing = int((drawn.sizes < least).sum())
            if not missing:
                return Assignment(drawn.list_samples(), attempt)
            short += missing
            if attempt == TRIAL and short > HOPELESS * TRIAL:
                break
        raise UserError(
            f"partition.beta = {self.beta}: in {attempt} attempts some of {self.clients} clients "
            f"always got fewer than {least} of {len(labels)} samples ({short / attempt:.3g} clients "
            "on average); use fewer clients, a larger beta or more samples"
        )


class DirichletMin(Scheme):
    """FedNH's partition: ``dirichlet``'s balanced division, with a minimum number of
    samples and classes per client.

    Dai et al., AAAI 2023 (protocols.md D3). Only the official training split is
    divided; every client is tested on the whole official test split. From the third
    class on, clients with at most one class swap chunks: the first of them with the
    last client, the second with the last but one, and so on. After three attempts the
    last draw is used, with a note.
    """

    exclusive = True
    scheme: str = "dirichlet-min"
    beta: float = Field(
        0.3,
        gt=0,
        description="concentration: the smaller, the fewer classes a client holds",
    )
    least_samples: PositiveInt = Field(
        10, description="smallest number of training samples per client"
    )
    least_classes: PositiveInt = Field(
        2, description="smallest number of classes per client"
    )

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        if not official_test:
            raise UserError(
                f"partition.scheme = '{self.scheme}' tests on the official test split, which "
                "this data set lacks; use another scheme"
            )
        end = len(labels) - official_test
        generator = randomness.generator(self.seed, "partition")
        pools = group_by_class(labels[:end], classes)
        for attempt in range(1, ATTEMPTS + 1):
            train = spread(
                pools, self.clients, self.beta, generator, rearrange=swap
            ).list_samples()
            samples = min(map(len, train))
            fewest = min(len(np.unique(labels[held])) for held in train)
            notes = [
                f"after {attempt} draws some client still holds only {samples} samples or "
                f"{fewest} classes"
            ]
            if samples >= self.least_samples and fewest >= self.least_classes:
                notes = []
                break
        test = np.arange(end, len(labels))
        trains = list(map(np.sort, train))
        notes += self.note_unread_share()
        return Draw(trains, [test] * self.clients, attempt, notes)


def swap(k: int, chunks: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Swap chunks between clients with at most one class and the last clients.

    Args:
        k: number of the class; nothing is swapped for the first two.
        chunks: number of each client's chunk [clients].
        held: number of classes of each client so far, int64 [clients].

    Returns:
        Number of each client's chunk [clients].
    """
    chunks = chunks.copy()
    if k >= 2:
        for turn, client in enumerate(np.flatnonzero(held <= 1), start=1):
            chunks[client], chunks[-turn] = chunks[-turn], chunks[client]
    return chunks


plugins = {"dirichlet": Dirichlet, "dirichlet-min": DirichletMin}
