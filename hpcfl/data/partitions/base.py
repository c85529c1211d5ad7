"""Contract of a partition scheme: a section of the experiment file with a method
``draw``.

Most schemes deal out the official training and test samples merged, and each client's
part is then cut at random into training and test samples: these extend
``MergedScheme`` and write ``assign``. A scheme that keeps the official splits apart, or
tests all clients on the same samples, extends ``Scheme`` and writes ``draw``. One that
needs more of a data set than its labels overrides ``draw_from`` as well.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from pydantic import PrivateAttr

from hpcfl.data.datasets import Dataset
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Partition
from hpcfl.rows import randomness

_BATCH = 10  # the test samples of PFLlib's smallest client fill one batch


@dataclass(frozen=True)
class Draw:
    """A drawn partition: for each client the indices of its training and test samples,
    int64.

    Attributes:
        attempts: how often it was drawn until it was accepted.
        notes: one line each for what a user should know.
        names: what the data call the clients, if anything.
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    attempts: int = 1
    notes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Assignment:
    """For each client the indices of all its samples, int64, before they are split.

    Attributes:
        attempts, notes: as in ``Draw``.
    """

    samples: list[np.ndarray]
    attempts: int = 1
    notes: list[str] = field(default_factory=list)


class Scheme(Partition):
    """A partition scheme; each adds its own keys as fields.

    Attributes:
        exclusive: no sample goes to two clients, but all clients may have the same test
            set.
    """

    exclusive: ClassVar[bool] = False
    _newcomers: int = PrivateAttr(0)

    def widened(self, newcomers: int) -> Self:
        """Return the scheme for its clients and so many newcomers after them."""
        wider = self.model_copy(update={"clients": self.clients + newcomers})
        wider._newcomers = newcomers
        return wider

    @property
    def newcomers(self) -> int:
        """The number of newcomers, which are the last ones of ``clients``."""
        return self._newcomers

    def draw_from(self, dataset: Dataset) -> Draw:
        """Spread the samples of a data set over the clients. Raises UserError where it
        cannot be done.
        """
        return self.draw(dataset.y.numpy(), dataset.classes, dataset.official_test)

    @abstractmethod
    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        """Spread samples with ``labels`` over the clients.

        Raises UserError where it cannot be done.

        Args:
            labels: int64 [samples], whose last ``official_test`` are the official test
                split. Random numbers come from ``randomness.generator(self.seed, …)``.
        """

    def cut(self, client: int, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cut a client's ``samples`` at random into those it trains on, a share
        ``train``, and the rest.
        """
        order = samples[
            randomness.permutation(len(samples), self.seed, "split", client)
        ]
        first = math.floor(self.train * len(order))
        return np.sort(order[:first]), np.sort(order[first:])


class MergedScheme(Scheme):
    """Deals out all samples, official training and test split merged, then splits each
    client's at random.

    ``partition.train`` is the share of a client's samples that it trains on, 0.75 by
    default.
    """

    exclusive = True

    @abstractmethod
    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        """Give each client its samples; no sample goes to two clients.

        Raises UserError where it cannot be done.

        Args:
            labels: int64 [samples] in [0, classes).
        """

    def draw_from(self, dataset: Dataset) -> Draw:
        if dataset.merges:
            return super().draw_from(dataset)
        return self.draw(self.labels_dealt(dataset), dataset.classes, 0)

    def labels_dealt(self, dataset: Dataset) -> np.ndarray:
        """Return the labels of the samples that are dealt out, which are the first
        ones.
        """
        labels = dataset.y.numpy()
        if dataset.merges:
            return labels
        return labels[: len(labels) - dataset.official_test]

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        if self.clients > len(labels):
            raise UserError(
                f"partition.clients = {self.clients}: there are only {len(labels)} samples"
            )
        generator = randomness.generator(self.seed, "partition")
        return self.divided(self.assign(labels, classes, generator))

    def divided(self, assignment: Assignment) -> Draw:
        """Cut each client's samples into those it trains on and the rest. Raises
        UserError where two clients have the same sample.
        """
        if np.bincount(np.concatenate(assignment.samples)).max(initial=0) > 1:
            raise UserError(
                f"partition.scheme = '{self.scheme}' gave a sample to more than one client"
            )
        parts = [
            self.cut(client, samples)
            for client, samples in enumerate(assignment.samples)
        ]
        return Draw(
            [train for train, _ in parts],
            [test for _, test in parts],
            assignment.attempts,
            assignment.notes,
        )

    def least_samples(self, samples: int) -> int:
        """Return PFLlib's lower bound for a client's samples, ⌊min(10 / test share, N /
        2M)⌋ of N ``samples``.
        """
        return math.floor(min(_BATCH / (1 - self.train), samples / (2 * self.clients)))


def round_down(sizes: np.ndarray, total: int) -> np.ndarray:
    """Round ``sizes`` to whole numbers that sum to ``total``: all down, but those with
    the largest remainders up, ties to the first.
    """
    rounded: np.ndarray = np.floor(sizes).astype(np.int64)
    first = np.argsort(rounded - sizes, kind="stable")
    rounded[first[: total - rounded.sum()]] += 1
    return rounded
