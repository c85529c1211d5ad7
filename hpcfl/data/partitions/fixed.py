"""DiversiFed's partitions: fixed numbers of training and test samples per client
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
    """A scheme with training samples from the official training split and test samples
    from the official test split.

    Data without a test split are split at random, a share ``train`` for training. A
    client's test samples have the class distribution of its training samples.
    """

    train_samples: PositiveInt = Field(
        500, description="training samples of each client"
    )
    test_samples: PositiveInt = Field(100, description="test samples of each client")
    replacement: bool = Field(
        False,
        description="draw with replacement if there are too few samples; else refuse",
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
        notes = self.note_unread_share() if official_test else []
        return Draw(list(map(np.sort, trains)), list(map(np.sort, tests)), notes=notes)

    @abstractmethod
    def deal(
        self,
        part: str,
        pool: np.ndarray,
        labels: np.ndarray,
        classes: int,
        each: int,
    ) -> list[np.ndarray]:
        """Assign samples of one part to each client.

        Args:
            part: "train" or "test"; draws that both share, such as a client's class
                distribution, use the same key of ``randomness``.
            pool: numbers of the part's samples.
            labels: class numbers of these samples.
            classes: number of classes.
            each: number of samples per client.

        Returns:
            Samples of each client, int64 [clients][each].

        Raises:
            UserError: There are too few samples.
        """

    def pick(
        self, pool: np.ndarray, count: int, generator: np.random.Generator, **what: Any
    ) -> np.ndarray:
        """Draw samples; with replacement only if there are too few and ``replacement``
        is set.

        Args:
            pool: samples to draw from.
            count: number of samples drawn.
            generator: generator of random numbers.
            what: client and class of the samples, for the message.

        Raises:
            UserError: There are too few samples.
        """
        short = count > len(pool)
        if short and (not self.replacement or not len(pool)):
            asking = ", ".join(f"{key} {value}" for key, value in what.items())
            raise UserError(
                f"partition.scheme = '{self.scheme}': {asking} needs "
                f"{count} samples of {len(pool)}; lower partition.train_samples or "
                "partition.test_samples"
                + (", or set partition.replacement = true" if len(pool) else "")
            )
        return generator.choice(pool, count, replace=short)


class SharedScheme(FixedScheme):
    """A scheme in which each client draws independently by class shares, so clients may
    share samples.
    """

    @abstractmethod
    def draw_shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        """Draw one client's class distribution, float64 [classes], with sum one."""

    def count_samples(self, shares: np.ndarray, samples: int) -> np.ndarray:
        """Return a client's number of samples per class, int64 [classes].

        All numbers are rounded down; classes with the largest remainders get one more.

        Args:
            shares: class distribution of the client.
            samples: number of samples of the client.
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
            counts = self.count_samples(self.draw_shares(classes, own), each)
            generator = randomness.generator(self.seed, "samples", part, client)
            picked = []
            for k in np.flatnonzero(counts).tolist():
                place = {"client": client, "class": k}
                picked.append(self.pick(by_class[k], counts[k], generator, **place))
            drawn.append(np.concatenate(picked))
        return drawn


class ClientDirichlet(SharedScheme):
    """DiversiFed's Dirichlet partition: each client draws a class distribution; clients
    may share samples.

    Wu et al., "The Diversity Bonus" (protocols.md D4). The paper states q ~ Dir(αp)
    with a prior p. With p = 1/K a constant classifier would beat the paper's baseline,
    so here q ~ Dir(α·1), as in the public code.
    """

    scheme: str = "client-dirichlet"
    beta: float = Field(
        0.1, gt=0, description="concentration α of a client's class distribution"
    )
    rounding: Literal["last-class", "largest-remainder"] = Field(
        "last-class",
        description="last-class: round each class and give the last class the rest, as the "
        "public code; largest-remainder: unbiased",
    )

    def draw_shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
        return generator.dirichlet(np.full(classes, self.beta))

    def count_samples(self, shares: np.ndarray, samples: int) -> np.ndarray:
        if self.rounding == "largest-remainder":
            return super().count_samples(shares, samples)
        upto = np.cumsum(np.floor(shares[:-1] * samples + 0.5))
        upto = np.minimum(upto, samples).astype(np.int64)
        return np.diff(upto, prepend=0, append=samples)


class PathologicalPairs(SharedScheme):
    """DiversiFed's pathological partition: each client draws a few classes; clients may
    share samples.

    Wu et al., "The Diversity Bonus" (protocols.md D5). A client has equally many
    samples of each of its classes. In the paper every client has two classes on each
    data set. A class may remain unused.
    """

    scheme: str = "pathological-pairs"
    classes_per_client: PositiveInt = Field(
        2, description="number of classes per client"
    )

    def draw_shares(self, classes: int, generator: np.random.Generator) -> np.ndarray:
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
    """DiversiFed's practical partition: groups of clients with dominant classes; each
    sample belongs to at most one client.

    Wu et al., "The Diversity Bonus", Table III (protocols.md D6). Classes are divided
    into one block of neighbouring classes per group. A client draws the dominant share
    of its samples uniformly from its group's block, and the rest uniformly from all
    other classes.
    """

    exclusive = True
    by_number = True
    scheme: str = "grouped"
    groups: list[PositiveInt] = Field(
        [6, 6, 8], description="number of clients of each group, in client order"
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
                f"partition.groups = {self.groups}: must have the sum "
                f"partition.clients = {self.clients} and at most {classes} entries, one per class"
            )
        blocks = np.array_split(np.arange(classes), len(self.groups))
        group_of = np.repeat(np.arange(len(self.groups)), self.groups)
        dominant = round(self.dominant * each)
        # Unused positions of the pool. With replacement all may be drawn again once too
        # few are unused.
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
