"""A partition file: the sample numbers of all clients in a row, read only if they are a
partition.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PositiveInt

from hpcfl.data import split_check
from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.files import atomic, hdf5, user_files
from hpcfl.files.atomic import Damaged

KIND = "partition"
PARTS = ("train", "test")
GROUP, FOLLOWED = "shift/group", "shift/followed"  # arrays of ``partition.Groups``
MOST_BYTES = 1 << 30
_PACKAGE = "hpcfl.data.partitions"


class ShiftAttributes(BaseModel):
    """Attributes of a partition file that describe the clients' groups."""

    model_config = ConfigDict(extra="forbid", strict=True)

    names: list[str]
    tables: list[dict[str, JsonValue]]


class Attributes(BaseModel):
    """Attributes of a partition file: the fields of ``partition.Split`` beside its
    arrays.
    """

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

    def repeats(self) -> bool:
        """Return whether a client may have a sample twice: drawn with replacement, or
        by a user's own scheme.
        """
        return self.scheme.get("replacement") is True or ":" in str(
            self.scheme.get("scheme")
        )

    def shares(self) -> bool:
        """Return whether a sample may go to several clients."""
        name = str(self.scheme.get("scheme"))
        if self.repeats() or self._replicates():
            return True
        # nothing else is imported because a file names it
        known = name in plugins.names(_PACKAGE)
        return known and not plugins.find(_PACKAGE, "partition.scheme", name).exclusive

    def _replicates(self) -> bool:
        """Return whether each group of clients has the whole data set dealt out."""
        tables = self.shift.tables if self.shift else []
        return any(table.get("replicate") is True for table in tables)


def read(
    path: str | Path,
) -> tuple[
    dict[str, list[np.ndarray]], tuple[np.ndarray, np.ndarray] | None, Attributes
]:
    """Read the clients' index lists by part, ``"train"`` and ``"test"``, the arrays
    GROUP and FOLLOWED if clients have groups, and the file's attributes.

    Raises UserError where the file cannot be read or holds no partition.
    """
    try:
        arrays, texts = hdf5.decode(
            hdf5.unseal(KIND, user_files.read_bytes(path, MOST_BYTES))
        )
        attributes = Attributes.model_validate_json(texts.get(KIND, ""))
        parts = {part: _lists(part, arrays) for part in PARTS}
        if len({len(lists) for lists in parts.values()}) > 1:
            raise Damaged("as many clients must train as are tested")
        if attributes.names and len(attributes.names) != len(parts["train"]):
            raise Damaged(
                f"it names {len(attributes.names)} of {len(parts['train'])} clients"
            )
        rules = attributes.samples, attributes.repeats(), attributes.shares()
        if problem := split_check.problem(parts["train"], parts["test"], *rules):
            raise Damaged(problem)
        groups = None
        if attributes.shift is not None:
            groups = _groups(arrays, len(parts["train"]), len(attributes.shift.names))
        return parts, groups, attributes
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read as a partition file ({atomic.reason(error)})"
        ) from None
    except pydantic.ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: cannot be used as a partition file ({place}: {first['msg']})"
        ) from None
    except Damaged as error:
        raise UserError(
            f"{path}: cannot be used as a partition file ({error})"
        ) from None


def _groups(
    arrays: dict[str, np.ndarray], clients: int, groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays GROUP [clients] and FOLLOWED [steps, clients]. Raises Damaged."""
    group = _integers(GROUP, arrays)
    followed = arrays.get(FOLLOWED)
    if len(group) != clients or group.min() < 0 or group.max() >= groups:
        raise Damaged(f"'{GROUP}' must be a group of each client, 0 … {groups - 1}")
    if (
        followed is None
        or followed.dtype.kind not in "iu"
        or followed.ndim != 2
        or followed.shape[1] != clients
    ):
        raise Damaged(f"'{FOLLOWED}' must be whole numbers, a column for each client")
    return group, followed.astype(np.int64, copy=False)


def _lists(part: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the samples of every client in a part, int64. Raises Damaged for bad
    offsets or a client without.
    """
    samples, offsets = (_integers(name, arrays) for name in (part, f"{part}_offsets"))
    if (
        len(offsets) < 2
        or offsets[0] != 0
        or offsets[-1] != len(samples)
        or (np.diff(offsets) < 0).any()
    ):
        raise Damaged(
            f"{part}_offsets must ascend from 0 to {len(samples)}, the length of {part}"
        )
    if len(empty := np.flatnonzero(np.diff(offsets) == 0)):
        raise Damaged(f"client {empty[0]} has no samples to {part} on")
    return np.split(samples, offsets[1:-1])


def _integers(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the array of this name, int64 [any]. Raises Damaged where it is not a list
    of integers.
    """
    array = arrays.get(name)
    if array is None or array.dtype.kind not in "iu" or array.ndim != 1:
        actual = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise Damaged(f"'{name}' must be a list of integers, not {actual}")
    return array.astype(np.int64, copy=False)
