"""Each class spread over the clients in Dirichlet proportions, balanced (protocols.md
D2, D3).

Balanced: a client that already holds the mean number of samples takes no more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Assignment, Draw, MergedScheme, Scheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness

CAP = 10_000  # attempts at a draw
# After so many attempts the scheme gives up if more clients than this got too few
# samples on average. Their number is nearly a Poisson variable: at a mean of 20 none of
# the further attempts succeeds, but for a chance of CAP · exp(−20) = 2e-5.
TRIAL = 100
HOPELESS = 20
ATTEMPTS = 3  # of dirichlet-min

# (class, the numbers of its chunks [clients], number of classes that each client holds so
# far [clients]) → the number of the chunk that each client gets
Rearrange = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


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
        samples = pool.copy()
        generator.shuffle(samples)
        below_mean = sizes < total / clients
        if not below_mean.any():
            # Nothing is left: this class and those after it have no samples.
            below_mean = ~below_mean
        shares = shares_of(below_mean, beta, generator)
        cuts = np.zeros(clients + 1, np.int64)
        cuts[1:] = np.cumsum(shares) * len(samples)
        cuts[-1] = len(samples)  # the last client gets what rounding leaves
        order = rearrange(k, np.arange(clients), held)
        begin, end = cuts[:-1][order], cuts[1:][order]
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


class Dirichlet(MergedScheme):
    """Each class spread over the clients in Dirichlet proportions, as PFLlib draws it
    (protocols.md D2).
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
        # one sample on each side of the split
        least = max(2, self.least_samples(len(labels)))
        pools = by_class(labels, classes)
        # Small data sets need many attempts: with 1,797 digits, 20 clients and beta 0.1
        # one in a thousand is accepted.
        short = 0  # clients with too few samples, over all attempts
        for attempt in range(1, CAP + 1):
            drawn = spread(pools, self.clients, self.beta, generator)
            missing = int((drawn.sizes < least).sum())
            if not missing:
                return Assignment(drawn.samples(), attempt)
            short += missing
            if attempt == TRIAL and short > HOPELESS * TRIAL:
                break
        drawable = self.find_larger_beta(pools, least, generator)
        advice = f"a larger beta, such as {drawable:g}" if drawable else "more samples"
        raise UserError(
            f"partition.beta = {self.beta}: in {attempt} attempts never did each of "
            f"{self.clients} clients get {least} of {len(labels)} samples ({short / attempt:.3g} "
            f"clients got fewer on average); take fewer clients or {advice}"
        )

    def find_larger_beta(
        self, pools: list[np.ndarray], least: int, generator: np.random.Generator
    ) -> float | None:
        """Return a larger ``beta`` that can be drawn, None without one among some
        multiples.
        """
        beta = self.beta
        for _ in range(10):
            beta *= 2
            for _ in range(5):
                drawn = spread(pools, self.clients, beta, generator)
                if drawn.sizes.min() >= least:
                    return beta
        return None


class DirichletMin(Scheme):
    """FedNH's Dirichlet partition: ``dirichlet``'s balanced spread, with a least number of
    samples and classes.

    Dai et al., AAAI 2023 (protocols.md D3). Only the official training split is dealt out;
    every client is tested on the whole official test split. From the third class on, a
    client that holds at most one class so far swaps its chunk with that of the last client,
    the next such client with the last but one, and so on. After three attempts the last
    draw counts, with a note.
    """

    exclusive = True
    scheme: str = "dirichlet-min"
    beta: float = Field(
        0.3,
        gt=0,
        description="concentration: the smaller, the fewer classes a client holds",
    )
    least_samples: PositiveInt = Field(
        10, description="training samples that each client should hold"
    )
    least_classes: PositiveInt = Field(
        2, description="classes that each client should hold"
    )

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        if not official_test:
            raise UserError(
                f"partition.scheme = '{self.scheme}' tests on the official test split; "
                "this data has none"
            )
        end = len(labels) - official_test
        generator = randomness.generator(self.seed, "partition")
        pools = by_class(labels[:end], classes)
        for attempt in range(1, ATTEMPTS + 1):
            train = spread(
                pools, self.clients, self.beta, generator, rearrange=swap
            ).samples()
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
        return Draw(trains, [test] * self.clients, attempt, notes)


def swap(k: int, chunks: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the chunks of class ``k`` after clients with at most one class have
    swapped theirs with the last ones'.

    chunks: their numbers [clients], in the order of the clients that get them.

    held: int64 [clients], how many classes each client holds so far.
    """
    chunks = chunks.copy()
    if k >= 2:
        for turn, client in enumerate(np.flatnonzero(held <= 1), start=1):
            chunks[client], chunks[-turn] = chunks[-turn], chunks[client]
    return chunks


plugins = {"dirichlet": Dirichlet, "dirichlet-min": DirichletMin}
