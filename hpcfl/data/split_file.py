"""Partition files: reading and validation.

A file holds the joined sample numbers of all clients. They are returned only if they
form a partition: existing samples, in order, and disjoint where the scheme requires it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PositiveInt

from hpcfl.experiment import plugins
from hpcfl.files import hdf5, untrusted_files
from hpcfl.files.atomic import Damaged

KIND = "partition"
PARTS = ("train", "test")
GROUP, FOLLOWED = "shift/group", "shift/followed"  # arrays of ``partition.Groups``
REPLICATE = "replicate"  # key of a shift
MOST_BYTES = 1 << 30
_PACKAGE = "hpcfl.data.partitions"


class ShiftAttributes(BaseModel):
    """Attributes of a partition file that describe groups of clients."""

    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str]
    tables: list[dict[str, JsonValue]]


class Attributes(BaseModel):
    """Attributes of a partition file: fields of ``partition.Split`` except arrays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    attempts: PositiveInt
    dataset: str
    samples: Annotated[int, Field(gt=0, lt=2**62)]
    labels_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    scheme: dict[str, JsonValue]
    notes: list[str]
    names: list[str] = []
    run: str | None = None
    shift: ShiftAttributes | None = None

    def allows_repeats(self) -> bool:
        """Return whether a client may have a sample twice.

        This is allowed with replacement, and in a user's own scheme.
        """
        return self.scheme.get("replacement") is True or ":" in str(
            self.scheme.get("scheme")
        )

    def allows_sharing(self) -> bool:
        """Return whether several clients may have the same sample."""
        name = str(self.scheme.get("scheme"))
        tables = self.shift.tables if self.shift else []
        if self.allows_repeats() or has_replicas(self.scheme, tables):
            return True
        # only built-in schemes are imported, never a module that a file names
        known = name in plugins.list_names(_PACKAGE)
        return known and not plugins.find(_PACKAGE, "partition.scheme", name).exclusive


def has_replicas(scheme: dict[str, Any], tables: Sequence[dict[str, Any]]) -> bool:
    """Return whether each group of clients has a partition of the whole data set.

    Args:
        scheme: section ``[partition]``, with the key REPLICATE if a run without such
            groups uses the partition.
        tables: tables ``[[shift]]``.
    """
    return any(table.get(REPLICATE) is True for table in (scheme, *tables))


Lists = dict[str, list[np.ndarray]]


def read(
    path: str | Path,
) -> tuple[Lists, tuple[np.ndarray, np.ndarray] | None, Attributes]:
    """Read a partition file.

    Returns:
        Sample numbers of the clients by part, ``"train"`` and ``"test"``; the arrays
        GROUP and FOLLOWED if clients have groups, else None; and the attributes.

    Raises:
        UserError: The file cannot be read or holds no partition.
    """
    with untrusted_files.refuse_unreadable(path, "a partition file"):
        sealed = untrusted_files.read_user_file(path, MOST_BYTES)
        arrays, texts = hdf5.decode(hdf5.unseal(KIND, sealed))
        described = untrusted_files.parsed(texts.get(KIND, ""))
        attributes = untrusted_files.checked(described, Attributes)
        parts = {part: _read_lists(part, arrays) for part in PARTS}
        clients = len(parts["train"])
        if len(parts["test"]) != clients:
            raise Damaged("'train' and 'test' must have the same number of clients")
        if attributes.names and len(attributes.names) != clients:
            raise Damaged(f"it names {len(attributes.names)} of {clients} clients")
        rules = (
            attributes.samples,
            attributes.allows_repeats(),
            attributes.allows_sharing(),
        )
        mistake = describe_mistake(parts["train"], parts["test"], *rules)
        if mistake:
            raise Damaged(mistake)
        groups = None
        if attributes.shift is not None:
            groups = _read_groups(arrays, clients, len(attributes.shift.names))
    return parts, groups, attributes


def _read_groups(
    arrays: dict[str, np.ndarray], clients: int, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays GROUP [clients] and FOLLOWED [steps, clients]. Raises Damaged."""
    group = _read_integers(GROUP, arrays, dimensions=1)
    followed = _read_integers(FOLLOWED, arrays, dimensions=2)
    if len(group) != clients or group.min() < 0 or group.max() >= groups:
        raise Damaged(f"'{GROUP}' must hold a group per client, 0 … {groups - 1}")
    if followed.shape[1] != clients:
        raise Damaged(f"'{FOLLOWED}' must have a column per client")
    return group, followed


def _read_lists(part: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the samples of every client in a part, int64.

    Raises Damaged for invalid offsets or a client without samples.
    """
    samples = _read_integers(part, arrays, dimensions=1)
    offsets = _read_integers(f"{part}_offsets", arrays, dimensions=1)
    sizes = np.diff(offsets)
    if (
        not len(sizes)
        or [offsets[0], offsets[-1]] != [0, len(samples)]
        or min(sizes) < 0
    ):
        raise Damaged(
            f"{part}_offsets must ascend from 0 to {len(samples)}, the length of {part}"
        )
    if not sizes.all():
        raise Damaged(f"client {sizes.argmin()} has no samples in '{part}'")
    return np.split(samples, offsets[1:-1])


def _read_integers(
    name: str, arrays: dict[str, np.ndarray], dimensions: int
) -> np.ndarray:
    """Return an array of integers, int64. Raises Damaged for other types or dimensions."""
    array = arrays.get(name)
    if array is None or array.dtype.kind not in "iu" or array.ndim != dimensions:
        actual = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise Damaged(
            f"'{name}' must be a {dimensions}-D array of integers; it is {actual}"
        )
    return array.astype(np.int64, copy=False)


def describe_mistake(
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    samples: int,
    repeats: bool,
    shares: bool,
) -> str:
    """Return the first reason why sample lists are not a partition; "" if they are.

    Every number must be in [0, samples), and no client may have a sample for training
    and for testing.

    Args:
        train: training samples of each client.
        test: test samples of each client.
        samples: number of samples of the data set.
        repeats: Whether a list may repeat numbers, in any order; else numbers must
            ascend.
        shares: Whether several clients may have the same sample; else only a test set
            of all clients may be shared.
    """
    clients = len(train)
    lists = [*train, *test]
    if all(np.array_equal(part, test[0]) for part in test):
        lists = [*train, test[0]]
    for position, numbers in enumerate(lists):
        owner = f"client {position % clients}"
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 1:
            return f"{owner}: sample numbers must be a NumPy array [samples]"
        if numbers.dtype.kind not in "iu":
            return f"{owner}: sample numbers must be integers, not {numbers.dtype}"
        outside = numbers[(numbers < 0) | (numbers >= samples)]
        if len(outside):
            return f"{owner}: sample {outside[0]} does not exist; there are {samples:,}"
        if not repeats and (numbers[1:] <= numbers[:-1]).any():
            return f"{owner}: sample numbers must ascend without repetition"
    for client, (own, tested) in enumerate(zip(train, test, strict=True)):
        both = own[np.isin(own, tested)]
        if len(both):
            return f"client {client}: sample {both[0]} is a training and a test sample"
    found, counts = np.unique(np.concatenate(lists), return_counts=True)
    if shares or counts.max() == 1:
        return ""
    sample = found[counts.argmax()]
    holders = [n % clients for n, numbers in enumerate(lists) if sample in numbers]
    first, second = sorted(holders)[:2]
    return f"clients {first} and {second} both have sample {sample}"
