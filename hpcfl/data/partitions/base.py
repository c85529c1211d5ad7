"""Contract of a partition scheme: a section of the experiment file with a method
``draw``.

Most schemes merge the official training and test split, assign all samples to clients,
and then split each client's samples at random into training and test samples. These
schemes extend ``MergedScheme`` and implement ``assign``. A scheme that keeps the
official splits apart, or tests all clients on the same samples, extends ``Scheme`` and
implements ``draw``. A scheme that needs more than labels also overrides ``draw_from``.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from pydantic import PrivateAttr

from hpcfl.data.datasets import Dataset
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Partition, list_changed_keys
from hpcfl.rows import randomness

_BATCH = 10  # in PFLlib the smallest client's test samples fill one batch


@dataclass(frozen=True)
class Draw:
    """A drawn partition.

    Attributes:
        train: training samples of each client, int64 sample numbers.
        test: test samples of each client, int64 sample numbers.
        attempts: number of draws until one was accepted.
        notes: notes for the user, one line each.
        names: names of the clients in the data; empty without names.
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    attempts: int = 1
    notes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Assignment:
    """Samples of each client before the split into training and test samples.

    Attributes:
        samples: samples of each client, int64 sample numbers.
        attempts: number of draws until one was accepted.
        notes: notes for the user, one line each.
    """

    samples: list[np.ndarray]
    attempts: int = 1
    notes: list[str] = field(default_factory=list)


class Scheme(Partition):
    """A partition scheme; subclasses add keys as fields.

    Attributes:
        exclusive: Whether each sample belongs to at most one client; a test set of all
            clients is allowed.
    """

    exclusive: ClassVar[bool] = False
    _newcomers: int = PrivateAttr(0)

    def add_newcomers(self, newcomers: int) -> Self:
        """Return the scheme with newcomers added to its clients.

        Args:
            newcomers: number of newcomers; they are the last clients.
        """
        wider = self.model_copy(update={"clients": self.clients + newcomers})
        wider._newcomers = newcomers
        return wider

    @property
    def newcomers(self) -> int:
        """Number of newcomers, which are the last of ``clients``."""
        return self._newcomers

    def draw_from(self, dataset: Dataset) -> Draw:
        """Draw the partition of a data set. Raises UserError if this is impossible."""
        labels = read_labels(dataset)
        return self.draw(labels, dataset.classes, dataset.official_test)

    @abstractmethod
    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        """Draw the partition of samples.

        Random numbers come from ``randomness.generator(self.seed, …)``.

        Args:
            labels: class number of each sample, int64 [samples].
            classes: number of classes.
            official_test: number of samples in the official test split, which come
                last.

        Raises:
            UserError: The partition cannot be drawn.
        """

    def split_samples(
        self, client: int, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Split a client's samples at random into training and test samples.

        Args:
            client: number of the client, part of the random key.
            samples: samples of the client.

        Returns:
            Training samples, a share ``train`` of all, and test samples, ascending.
        """
        order = samples[
            randomness.permutation(len(samples), self.seed, "split", client)
        ]
        first = math.floor(self.train * len(order))
        return np.sort(order[:first]), np.sort(order[first:])

    def note_unread_share(self) -> list[str]:
        """Return a note if ``train`` was changed, for data with separate test samples."""
        if "train" not in list_changed_keys(self):
            return []
        return [
            f"partition.train = {self.train}: not read, because the data separates test samples"
        ]


class MergedScheme(Scheme):
    """A scheme that merges the official training and test split, assigns all samples,
    and then splits each client's samples at random.

    ``partition.train`` is the share of a client's samples for training, 0.75 by
    default.
    """

    exclusive = True

    @abstractmethod
    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        """Assign samples to clients, each sample to at most one client.

        Args:
            labels: class number of each sample, int64 [samples] in [0, classes).
            classes: number of classes.
            generator: generator of random numbers.

        Raises:
            UserError: The samples cannot be assigned.
        """

    def draw_from(self, dataset: Dataset) -> Draw:
        if dataset.merges:
            return super().draw_from(dataset)
        return self.draw(self.get_assigned_labels(dataset), dataset.classes, 0)

    def get_assigned_labels(self, dataset: Dataset) -> np.ndarray:
        """Return the labels of the samples that are assigned, which are the first ones."""
        labels = read_labels(dataset)
        if dataset.merges:
            return labels
        return labels[: len(labels) - dataset.official_test]

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        if self.clients > len(labels):
            raise UserError(
                f"partition.clients = {self.clients}: the data set has only {len(labels)} samples"
            )
        generator = randomness.generator(self.seed, "partition")
        assignment = self.assign(labels, classes, generator)
        if not isinstance(assignment, Assignment):
            raise UserError(
                f"partition.scheme = '{self.scheme}': assign must return an Assignment, not a "
                f"{type(assignment).__name__}"
            )
        return self.divide(assignment)

    def divide(self, assignment: Assignment) -> Draw:
        """Split each client's samples into training and test samples.

        Raises UserError if two clients have the same sample.
        """
        assigned = np.concatenate(assignment.samples)
        if len(np.unique(assigned)) < len(assigned):
            raise UserError(
                f"partition.scheme = '{self.scheme}' assigned a sample to several clients"
            )
        parts = [
            self.split_samples(client, samples)
            for client, samples in enumerate(assignment.samples)
        ]
        return Draw(
            [train for train, _ in parts],
            [test for _, test in parts],
            assignment.attempts,
            assignment.notes,
        )

    def compute_least_samples(self, samples: int) -> int:
        """Return PFLlib's lower bound of a client's number of samples, ⌊min(10 / test
        share, N / 2M)⌋.

        Args:
            samples: number N of all samples; M is the number of clients.
        """
        return math.floor(min(_BATCH / (1 - self.train), samples / (2 * self.clients)))


def read_labels(dataset: Dataset) -> np.ndarray:
    """Return the labels of a data set, which a scheme cannot change."""
    labels: np.ndarray = dataset.y.numpy()
    labels.flags.writeable = False
    return labels


def round_down(sizes: np.ndarray, total: int) -> np.ndarray:
    """Round sizes to whole numbers with a given sum.

    All are rounded down; then those with the largest remainders are rounded up, in case
    of ties the first.

    Args:
        sizes: the sizes.
        total: the sum.
    """
    rounded: np.ndarray = np.floor(sizes).astype(np.int64)
    first = np.argsort(rounded - sizes, kind="stable")
    rounded[first[: total - rounded.sum()]] += 1
    return rounded
