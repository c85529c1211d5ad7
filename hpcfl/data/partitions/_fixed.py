"""DiversiFed's partitions: fixed numbers of training and test samples of each client."""

from abc import abstractmethod
from typing import Any

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
        trains = self.deal("train", train, labels[train], classes, self.train_samples)
        tests = self.deal("test", test, labels[test], classes, self.test_samples)
        return Draw(list(map(np.sort, trains)), list(map(np.sort, tests)))

    @abstractmethod
    def deal(
        self, part: str, pool: np.ndarray, labels: np.ndarray, classes: int, each: int
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
                f"{count} samples of {len(pool)}; take fewer samples or clients"
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
        self, part: str, pool: np.ndarray, labels: np.ndarray, classes: int, each: int
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
