"""Training and test samples of each client: drawn by a scheme, or read back from a
file.
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
    """Groups of clients that the tables ``[[shift]]`` drew.

    group: of each client, int64 [clients]; names: of the groups. followed: which concept
        of each shift a client follows in each of its steps, int64 [steps, clients].
    shifts: the tables that drew them.
    """

    group: np.ndarray
    names: list[str]
    followed: np.ndarray
    shifts: list[dict[str, Any]]

    def equals(self, other: "Groups") -> bool:
        """Return whether every client follows the same concepts in both."""
        return self.shifts == other.shifts and np.array_equal(
            self.followed, other.followed
        )


@dataclass(frozen=True, eq=False)
class Split:
    """A partition: the indices of every client's training and test samples, int64.

    They ascend, unless a user's own scheme drew them otherwise.
    dataset, samples, labels_sha256: the data it belongs to: name, number of samples,
        digest of the labels.
    scheme: the section ``[partition]`` that drew it. attempts: how often it was drawn
        until it was accepted.
    notes: one line each for what a user should know. names: what the data call the
        clients, if anything. run: the fingerprint of the run whose partition it is.
    groups: what else sets clients apart, if anything.
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

    def counts(
        self, labels: np.ndarray, classes: int, part: str = "train"
    ) -> np.ndarray:
        """Count the samples per client and class, int64 [clients, classes]; ``part`` is
        "train" or "test".
        """
        held = {"train": self.train, "test": self.test}[part]
        return np.stack([np.bincount(labels[own], minlength=classes) for own in held])

    @property
    def has_global_test(self) -> bool:
        """Return whether all clients are tested on the same samples."""
        return all(np.array_equal(held, self.test[0]) for held in self.test)

    def save(self, path: str | Path) -> None:
        """Write a partition file, whole or not at all.

        It is HDF5: for each part the indices of all clients in a row, and offsets,
        where each client begins.
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
        """Read what ``save`` wrote. Raises UserError if it is missing, damaged or not a
        partition.
        """
        parts, groups, attributes = split_file.read(path)
        described = attributes.model_dump(exclude={"shift"})
        if attributes.shift is not None and groups is not None:
            names, tables = attributes.shift.names, attributes.shift.tables
            described["groups"] = Groups(groups[0], names, groups[1], tables)
        return cls(parts["train"], parts["test"], **described)

    def equals(self, other: "Split") -> bool:
        """Return whether every client has the same samples with the same labels in
        both, however drawn.
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
    """Draw the partition that the section ``[partition]`` asks for, or read it from
    ``partition.file``.

    newcomers: how many clients there are beside ``partition.clients``, after them.
    replicas: the group of each client, int64 [clients and newcomers], where each group
    has the whole data set dealt out, in a partition of its own. data: the section
    ``[data]``, where not all samples of the data set are to be dealt out.
    Raises UserError if it cannot be drawn, leaves a client without training or test
    samples, or does not fit the data.
    """
    try:
        return _make(
            scheme.widened(newcomers),
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
    """Make the partition of a scheme that counts newcomers among its clients."""
    labels = dataset.y.numpy()
    checksum = hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
    if scheme.file is not None:
        return _read(scheme.file, scheme, dataset, checksum)
    if data.imbalance > 1:
        draw = _draw_long_tail(scheme, dataset, replicas, data)
    else:
        draw = _draw(scheme, dataset, replicas)
    for client, (train, test) in enumerate(zip(draw.train, draw.test, strict=True)):
        if not len(train) or not len(test):
            raise UserError(
                f"partition: client {client} gets {len(train)} samples to train "
                f"and {len(test)} to test on, it needs at least one of each; "
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
            f"partition.scheme = '{scheme.scheme}' draws no partition: {mistake}"
        )
    return Split(
        train=draw.train,
        test=draw.test,
        attempts=draw.attempts,
        dataset=dataset.name,
        samples=len(labels),
        labels_sha256=checksum,
        scheme=scheme.model_dump(mode="json"),
        notes=[*dataset.notes, *draw.notes],
        names=draw.names,
    )


def _draw(scheme: Scheme, dataset: Dataset, replicas: np.ndarray | None) -> Draw:
    """Deal out a data set, once for each group that has all of it."""
    if replicas is None:
        return scheme.draw_from(dataset)
    return _draw_repeated(scheme, dataset, replicas)


def _draw_long_tail(
    scheme: Scheme,
    dataset: Dataset,
    replicas: np.ndarray | None,
    data: sections.Data,
) -> Draw:
    """Deal out the samples that a long tail leaves."""
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
    """Deal out the data set to each group by itself, each with a key of its own.

    A sample then has an owner in every group, and what one client is tested on another
    one may train on.
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
        own = scheme.model_copy(update=update).widened(newcomers)
        draw = own.draw_from(dataset)
        for position, client in enumerate(members.tolist()):
            trains[client] = draw.train[position]
            tests[client] = draw.test[position]
            names[client] = draw.names[position] if draw.names else ""
        attempts = max(attempts, draw.attempts)
        notes += draw.notes
    notes.append(
        f"the {len(dataset.y):,} samples are dealt out {len(groups)} times, to each group of "
        "clients by itself: a test sample of one client may be a training sample of another"
    )
    return Draw(
        train=trains,
        test=tests,
        attempts=attempts,
        notes=list(dict.fromkeys(notes)),
        names=names if any(names) else [],
    )


def _read(path: str, scheme: Scheme, dataset: Dataset, checksum: str) -> Split:
    """Read the partition in a file, with a note where it was drawn with other keys than
    ``scheme`` has.

    Raises UserError where it is for other labels, whose digest is not ``checksum``, or
    for more or fewer clients.
    """
    split = Split.load(path)
    if (split.samples, split.labels_sha256) != (len(dataset.y), checksum):
        raise UserError(
            f"partition.file = '{scheme.file}' is for {split.dataset!r} with {split.samples} "
            f"samples, not for these labels of '{dataset.name}' with {len(dataset.y)} samples"
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
            f"partition.file = '{scheme.file}' counts: it was drawn with {', '.join(differs)}"
        )
    return split
