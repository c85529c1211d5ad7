"""Partition of a data set: training and test samples of each client, drawn by a scheme
or read from a file.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data import long_tail, split_file
from hpcfl.data.datasets import Dataset
from hpcfl.data.partitions.base import Draw, MergedScheme, Scheme
from hpcfl.data.split_file import KIND, PARTS
from hpcfl.errors import UserError
from hpcfl.experiment import sections
from hpcfl.files import atomic, hdf5
from hpcfl.rows import randomness


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of clients, as the tables ``[[shift]]`` draw them.

    Attributes:
        group: group of each client, int64 [clients].
        names: names of the groups.
        followed: concept of each client in each step of each shift, int64 [steps,
            clients].
        shifts: the tables ``[[shift]]``.
    """

    group: np.ndarray
    names: list[str]
    followed: np.ndarray
    shifts: list[dict[str, Any]]

    def equals(self, other: "Groups") -> bool:
        """Return whether every client follows the same concepts in both drawings."""
        return self.shifts == other.shifts and np.array_equal(
            self.followed, other.followed
        )


@dataclass(frozen=True, eq=False)
class Split:
    """A partition: each client's training and test samples, int64 sample numbers.

    Numbers ascend, except in partitions of a user's own scheme.

    Attributes:
        train: training samples of each client.
        test: test samples of each client.
        attempts: number of draws until one was accepted.
        dataset: name of the data set.
        samples: number of samples of the data set.
        labels_sha256: SHA-256 of its labels.
        scheme: section ``[partition]`` of the drawing.
        notes: notes for the user, one line each.
        names: names of the clients in the data; empty without names.
        run: fingerprint of the run that uses the partition.
        groups: groups of clients with different distribution shifts, or None.
    """

    train: list[np.ndarray]
    test: list[np.ndarray]
    attempts: int
    dataset: str
    samples: int
    labels_sha256: str
    scheme: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    run: str | None = None
    groups: Groups | None = None

    def count_classes(
        self, labels: np.ndarray, classes: int, part: str = "train"
    ) -> np.ndarray:
        """Return the number of samples per client and class, int64 [clients, classes].

        Args:
            labels: class number of each sample of the data set.
            classes: number of classes.
            part: "train" or "test".
        """
        held = {"train": self.train, "test": self.test}[part]
        return np.stack([np.bincount(labels[own], minlength=classes) for own in held])

    @property
    def has_global_test(self) -> bool:
        """Return whether all clients have the same test samples."""
        return all(np.array_equal(held, self.test[0]) for held in self.test)

    def save(self, path: str | Path) -> None:
        """Write a partition file atomically.

        The file is HDF5. Each part has an array of the joined sample numbers of all
        clients, and an array of offsets at which each client begins.
        """
        attributes = dict(vars(self))
        arrays = {}
        for part in PARTS:
            lists = attributes.pop(part)
            arrays[part] = np.concatenate(lists)
            arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, lists)])
        del attributes["groups"]
        if self.groups is not None:
            arrays[split_file.GROUP] = self.groups.group
            arrays[split_file.FOLLOWED] = self.groups.followed
            attributes["shift"] = {
                "names": self.groups.names,
                "tables": self.groups.shifts,
            }
        content = hdf5.encode(arrays, {KIND: json.dumps(attributes, sort_keys=True)})
        atomic.write(Path(path), hdf5.seal(KIND, content))

    @classmethod
    def load(cls, path: str | Path) -> "Split":
        """Read a file written by ``save``.

        Raises UserError if the file is missing, damaged or not a partition.
        """
        parts, groups, attributes = split_file.read(path)
        described = attributes.model_dump(exclude={"shift"})
        if attributes.shift is not None and groups is not None:
            names, tables = attributes.shift.names, attributes.shift.tables
            described["groups"] = Groups(groups[0], names, groups[1], tables)
        return cls(parts["train"], parts["test"], **described)

    def equals(self, other: "Split") -> bool:
        """Return whether each client has the same samples with the same labels in both
        partitions.
        """
        if self.labels_sha256 != other.labels_sha256:
            return False
        if (self.groups is None) != (other.groups is None):
            return False
        if self.groups and other.groups and not self.groups.equals(other.groups):
            return False
        return all(
            len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))
            for mine, theirs in ((self.train, other.train), (self.test, other.test))
        )


def make(
    scheme: Scheme,
    dataset: Dataset,
    newcomers: int = 0,
    replicas: np.ndarray | None = None,
    data: sections.Data | None = None,
) -> Split:
    """Draw the partition of the section ``[partition]``, or read ``partition.file``.

    Args:
        scheme: the section.
        dataset: the data set.
        newcomers: number of newcomers; they follow the ``partition.clients`` clients.
        replicas: group of each client, int64 [clients and newcomers], if each group
            gets the whole data set in a separate partition; else None.
        data: section ``[data]``, needed for a long-tailed data set.

    Raises:
        UserError: The partition cannot be drawn, leaves a client without training or
            test samples, or does not fit the data set.
    """
    try:
        return _make(
            scheme.add_newcomers(newcomers),
            dataset,
            replicas,
            data or sections.Data(),
        )
    except UserError as error:
        if not newcomers:
            raise
        raise UserError(f"{error} (with newcomers.clients = {newcomers})") from None


def _make(
    scheme: Scheme,
    dataset: Dataset,
    replicas: np.ndarray | None,
    data: sections.Data,
) -> Split:
    """Make the partition of a scheme whose clients include newcomers."""
    labels = dataset.y.numpy()
    checksum = hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
    if scheme.file is not None:
        split = _read(scheme.file, scheme, dataset, checksum)
        if data.imbalance > 1:
            split.notes.append(
                f"data.imbalance = {data.imbalance:g}: not read, because partition.file = "
                f"'{scheme.file}' contains the samples of each client"
            )
        shifts = split.groups.shifts if split.groups else []
        # the run draws its own groups; those in the file are of other shifts
        split = replace(split, groups=None)
        if split_file.has_replicas(split.scheme, shifts):
            split.scheme[split_file.REPLICATE] = True
        elif replicas is not None:
            split.notes.append(
                f"shift.replicate = true: not read, because partition.file = '{scheme.file}' "
                "contains a single partition"
            )
        return split
    if data.imbalance > 1:
        draw = _draw_long_tail(scheme, dataset, replicas, data)
    else:
        draw = _draw(scheme, dataset, replicas)
    for client, (train, test) in enumerate(zip(draw.train, draw.test, strict=True)):
        if not len(train) or not len(test):
            raise UserError(
                f"partition: client {client} gets {len(train)} training samples and "
                f"{len(test)} test samples, but needs at least one of each; "
                f"{scheme.clients} clients share {len(labels)} samples"
            )
    mistake = split_file.describe_mistake(
        draw.train,
        draw.test,
        len(labels),
        repeats=True,
        shares=True,
    )
    if mistake:
        raise UserError(
            f"partition.scheme = '{scheme.scheme}' drew an invalid partition: {mistake}"
        )
    notes = list(draw.notes)
    if replicas is None and _tests_on_training(draw, len(labels)):
        notes.append("a test sample of one client is a training sample of another")
    return Split(
        train=draw.train,
        test=draw.test,
        attempts=draw.attempts,
        dataset=dataset.name,
        samples=len(labels),
        labels_sha256=checksum,
        scheme=scheme.model_dump(mode="json"),
        notes=notes,
        names=draw.names,
    )


def _tests_on_training(draw: Draw, samples: int) -> bool:
    """Return whether a test sample of some client is a training sample of another."""
    is_trained = np.zeros(samples, bool)
    is_trained[np.concatenate(draw.train)] = True
    return any(is_trained[held].any() for held in draw.test)


def _draw(scheme: Scheme, dataset: Dataset, replicas: np.ndarray | None) -> Draw:
    """Draw a partition of the data set, or with ``replicas`` one for each group."""
    if replicas is None:
        return _draw_once(scheme, dataset)
    return _draw_repeated(scheme, dataset, replicas)


def _draw_once(scheme: Scheme, dataset: Dataset) -> Draw:
    """Draw a partition of the data set. Raises UserError for another number of clients."""
    draw = scheme.draw_from(dataset)
    parts: list[Any] = []
    if isinstance(draw, Draw):
        parts = [draw.train, draw.test, draw.names or draw.test]
    if set(map(len, parts)) != {scheme.clients}:
        raise UserError(
            f"partition.scheme = '{scheme.scheme}' must return a Draw with the samples of "
            f"{scheme.clients} clients"
        )
    return draw


def _draw_long_tail(
    scheme: Scheme,
    dataset: Dataset,
    replicas: np.ndarray | None,
    data: sections.Data,
) -> Draw:
    """Draw a partition of a long-tailed data set."""
    merged = isinstance(scheme, MergedScheme)
    chosen, note = long_tail.select_samples(dataset, data, scheme.seed, merged)
    draw = _draw(scheme, long_tail.restrict(dataset, chosen), replicas)
    return replace(
        draw,
        train=[chosen[held] for held in draw.train],
        test=[chosen[held] for held in draw.test],
        notes=[*draw.notes, note],
    )


def _draw_repeated(scheme: Scheme, dataset: Dataset, replicas: np.ndarray) -> Draw:
    """Draw a partition of the whole data set for each group, each with a separate key.

    Each sample then has an owner in every group, and a client's test sample may be a
    training sample of another client.
    """
    trains = [np.zeros(0, np.int64)] * len(replicas)
    tests = list(trains)
    names = [""] * len(replicas)
    attempts, notes = 1, []
    groups = np.unique(replicas).tolist()
    for group in groups:
        members = np.flatnonzero(replicas == group)
        key = randomness.generator(scheme.seed, "replica", group)
        seed = int(key.integers(2**63))
        newcomers = int((members >= len(replicas) - scheme.newcomers).sum())
        update = {"clients": len(members) - newcomers, "seed": seed}
        own = scheme.model_copy(update=update).add_newcomers(newcomers)
        draw = _draw_once(own, dataset)
        for position, client in enumerate(members.tolist()):
            trains[client] = draw.train[position]
            tests[client] = draw.test[position]
            names[client] = draw.names[position] if draw.names else ""
        attempts = max(attempts, draw.attempts)
        notes += draw.notes
    notes.append(
        f"each of {len(groups)} groups of clients has a partition of all {len(dataset.y):,} "
        "samples: a test sample of one client may be a training sample of another"
    )
    return Draw(
        train=trains,
        test=tests,
        attempts=attempts,
        notes=list(dict.fromkeys(notes)),
        names=names if any(names) else [],
    )


def _read(path: str, scheme: Scheme, dataset: Dataset, checksum: str) -> Split:
    """Read the partition in a file, with a note on keys that differ from ``scheme``.

    Raises UserError if the digest of its labels is not ``checksum``, or if it has
    another number of clients.
    """
    split = Split.load(path)
    if (split.samples, split.labels_sha256) != (len(dataset.y), checksum):
        raise UserError(
            f"partition.file = '{scheme.file}' is for {split.dataset!r} with {split.samples} "
            f"samples, not for the labels of '{dataset.name}' with {len(dataset.y)} samples"
        )
    if len(split.train) != scheme.clients:
        raise UserError(
            f"partition.file = '{scheme.file}' has {len(split.train)} clients, "
            f"partition.clients = {scheme.clients}"
        )
    if split.dataset != dataset.name:
        split.notes.append(
            f"partition.file = '{scheme.file}' was drawn for '{split.dataset}'; '{dataset.name}' "
            "has the same labels"
        )
    asked = scheme.model_dump(mode="json")
    differs = [
        f"{key} = {value!r}"
        for key, value in split.scheme.items()
        if key != "file" and asked.get(key) != value
    ]
    if differs:
        split.notes.append(
            f"partition.file = '{scheme.file}' takes precedence: it was drawn with "
            f"{', '.join(differs)}"
        )
    return split
