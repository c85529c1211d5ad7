"""DiversiFed's partitions: fixed numbers of training and test samples of each client
(protocols.md D4 to D7).
"""

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Draw, Scheme, round_down
from hpcfl.errors import UserError
from hpcfl.rows import randomness


class FixedScheme(Scheme):
    """Training samples come from the official training split, test samples from the
    official test split.

    Data without a test split is cut at random, a share ``train`` of it for training. A
    client is tested on the class distribution that it trains on.
    """

    train_samples: PositiveInt = Field(
        500, description="training samples of each client"
    )
    test_samples: PositiveInt = Field(100, description="test samples of each client")
    replacement: bool = Field(
        False,
        description="draw with replacement where there are too few "
        "samples, else refuse",
    )

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        order = np.arange(len(labels))
        cut = len(labels) - official_test
        if not official_test:
            order = randomness.permutation(len(labels), self.seed, "split")
            cut = int(self.train * len(labels))
        train, test = order[:cut], order[cut:]
        trains = self.deal(
            "train", train, labels[train], classes, each=self.train_samples
        )
        tests = self.deal("test", test, labels[test], classes, each=self.test_samples)
        return Draw(list(map(np.sort, trains)), list(map(np.sort, tests)))

    @abstractmethod
    def deal(
        self,
        part: str,
        pool: np.ndarray,
        labels: np.ndarray,
        classes: int,
        each: int,
    ) -> list[np.ndarray]:
        """Return the ``each`` samples that every client gets from ``pool``, int64
        [clients][each].

        part: "train" or "test"; what both have in common, such as a client's class
        distribution, is drawn with the same key of ``randomness``. pool: indices of
        samples. labels: theirs. Raises UserError where there are too few.
        """

    def pick(
        self, pool: np.ndarray, count: int, generator: np.random.Generator, **what: Any
    ) -> np.ndarray:
        """Draw ``count`` samples of ``pool``: with replacement only if it is too small
        and ``replacement`` is on.

        what: names in the message whose samples these are. Raises UserError where the
        pool is too small.
        """
        short = count > len(pool)
        if short and (not self.replacement or not len(pool)):
            asking = ", ".join(f"{key} {value}" for key, value in what.items())
            raise UserError(
                f"partition.scheme = '{self.scheme}': {asking} asks for "
                f"{count} samples of {len(pool)}; lower partition.train_samples or "
                "partition.test_samples"
                + (", or set partition.replacement = true" if len(pool) else "")
            )
        return generator.choice(pool, count, replace=short)


class SharedScheme(FixedScheme):
    """Each client draws for itself, so clients may share samples; a scheme says how
    much of each class.
    """

    @abstractmethod
    def shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        """Draw one client's class distribution, float64 [classes], summing to one."""

    def counts(self, shares: np.ndarray, samples: int) -> np.ndarray:
        """Return the number of a client's ``samples`` of each class by its ``shares``,
        int64 [classes].

        All are rounded down; the classes with the largest remainders get one more.
        """
        return round_down(shares * samples, samples)

    def deal(
        self,
        part: str,
        pool: np.ndarray,
        labels: np.ndarray,
        classes: int,
        each: int,
    ) -> list[np.ndarray]:
        by_class = [pool[labels == k] for k in range(classes)]
        drawn = []
        for client in range(self.clients):
            own = randomness.generator(self.seed, "shares", client)
            counts = self.counts(self.shares(classes, own), each)
            generator = randomness.generator(self.seed, "samples", part, client)
            picked = []
            for k in np.flatnonzero(counts).tolist():
                place = {"client": client, "class": k}
                picked.append(self.pick(by_class[k], counts[k], generator, **place))
            drawn.append(np.concatenate(picked))
        return drawn


class ClientDirichlet(SharedScheme):
    """DiversiFed's Dirichlet partition: each client draws its own class distribution;
    clients may share samples.

    Wu et al., "The Diversity Bonus" (protocols.md D4). The paper prints q ~ Dir(αp) with a
    prior p. With p = 1/K a constant classifier would beat its own baseline, so here q ~
    Dir(α·1), as in the public code.
    """

    scheme: str = "client-dirichlet"
    beta: float = Field(
        0.1, gt=0, description="concentration α of a client's class distribution"
    )
    rounding: Literal["last-class", "largest-remainder"] = Field(
        "last-class",
        description="each class to the nearest and the rest to the last, as the public code; or unbiased",
    )

    def shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        return generator.dirichlet(np.full(classes, self.beta))

    def counts(self, shares: np.ndarray, samples: int) -> np.ndarray:
        if self.rounding == "largest-remainder":
            return super().counts(shares, samples)
        upto = np.cumsum(np.floor(shares[:-1] * samples + 0.5))
        upto = np.minimum(upto, samples).astype(np.int64)
        return np.diff(upto, prepend=0, append=samples)


class PathologicalPairs(SharedScheme):
    """DiversiFed's pathological partition: each client draws a few classes; clients may
    share samples.

    Wu et al., "The Diversity Bonus" (protocols.md D5). The classes of a client have equal
    numbers of samples. The paper gives two classes to a client for every data set. A class
    may remain unused.
    """

    scheme: str = "pathological-pairs"
    classes_per_client: PositiveInt = Field(
        2, description="classes that a client holds"
    )

    def shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        if self.classes_per_client > classes:
            raise UserError(
                f"partition.classes_per_client = {self.classes_per_client}: the data has "
                f"{classes} classes"
            )
        shares = np.zeros(classes)
        shares[generator.choice(classes, self.classes_per_client, replace=False)] = (
            1 / self.classes_per_client
        )
        return shares


class Grouped(FixedScheme):
    """DiversiFed's practical partition: groups of clients with dominant classes; no sample
    goes to two clients.

    Wu et al., "The Diversity Bonus", Table III (protocols.md D6). Classes fall into as many
    neighbouring blocks as there are groups. A client draws the dominant share of its
    samples uniformly from its group's block and the rest uniformly from all other classes'
    samples.
    """

    exclusive = True
    by_number = True
    scheme: str = "grouped"
    groups: list[PositiveInt] = Field(
        [6, 6, 8], description="clients of each group, in index order"
    )
    dominant: float = Field(
        0.8,
        ge=0,
        le=1,
        description="share of a client's samples from its group's classes",
    )

    def deal(
        self,
        part: str,
        pool: np.ndarray,
        labels: np.ndarray,
        classes: int,
        each: int,
    ) -> list[np.ndarray]:
        if sum(self.groups) != self.clients or len(self.groups) > classes:
            raise UserError(
                f"partition.groups = {self.groups}: must sum to "
                f"partition.clients = {self.clients}, at most as many as the {classes} classes"
            )
        blocks = np.array_split(np.arange(classes), len(self.groups))
        group_of = np.repeat(np.arange(len(self.groups)), self.groups)
        dominant = round(self.dominant * each)
        # Positions of the pool that are not handed out yet. With replacement, once too
        # few are left, all may be drawn again.
        left = np.ones(len(pool), bool)
        drawn = []
        for client, group in enumerate(group_of):
            generator = randomness.generator(self.seed, "samples", part, client)
            inside = np.isin(labels, blocks[group])
            chosen = []
            for wanted, count in ((inside, dominant), (~inside, each - dominant)):
                places = np.flatnonzero(wanted & left)
                if len(places) < count and self.replacement:
                    places = np.flatnonzero(wanted)
                chosen.append(self.pick(places, count, generator, client=client))
            positions = np.concatenate(chosen)
            left[positions] = False
            drawn.append(pool[positions])
        return drawn


plugins = {
    "client-dirichlet": ClientDirichlet,
    "grouped": Grouped,
    "pathological-pairs": PathologicalPairs,
}
