"""The data files of a checkpoint: one HDF5 file for the server and one for each group
of clients.

A file is named by the SHA-256 of its bytes. So two files of one name are the same file,
whoever wrote them and with whatever number of ranks, and a file that an older
checkpoint needs is never overwritten by another.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt
from pydantic.dataclasses import dataclass

from hpcfl.files import atomic, foreign, hdf5
from hpcfl.files.atomic import Damaged

if TYPE_CHECKING:
    from torch import Tensor

    from hpcfl.storage.clients import Row, Snapshot

# The most in a group. Every group is a file, and written again when one of its clients
# changed: larger groups make fewer files, smaller ones write less that did not change.
GROUP_CLIENTS = 64
GROUP_BYTES = 64 << 20

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Shard:
    """One data file: the server's state, or that of some clients.

    ids: of the clients, ascending; None for the server. digests: of the server's state,
    or of each client's. Raises ValueError for what cannot be a shard.
    """

    name: str
    sha256: Sha256
    size: NonNegativeInt  # bytes
    ids: list[NonNegativeInt] | None
    digests: list[Sha256]

    def __post_init__(self) -> None:
        ids = [0] if self.ids is None else self.ids
        if self.name != _name("server" if self.ids is None else "clients", self.sha256):
            raise ValueError(f"{self.name!r} is not the name of this file")
        if ids != sorted(set(ids)) or len(ids) != len(self.digests):
            raise ValueError(f"{self.name}: its ids and digests do not belong together")

    @property
    def content(self) -> tuple[object, ...]:
        """A key for the state that the file holds; shards of equal content can stand
        for each other.
        """
        return content(self.ids, self.digests)

    def present(self, folder: Path) -> bool:
        """Whether the file is there with its size (not whether its bytes are right)."""
        try:
            return (folder / self.name).lstat().st_size == self.size
        except OSError:
            return False

    def verify(self, folder: Path) -> None:
        """Read the file. Raises Damaged unless it has the SHA-256 that it was written
        with.
        """
        try:
            with foreign.opened(folder / self.name) as file:
                right = (
                    os.fstat(file.fileno()).st_size == self.size
                    and foreign.sha256(file) == self.sha256
                )
        except (FileNotFoundError, Damaged) as error:
            raise Damaged(f"{self.name}: {atomic.reason(error)}") from error
        if not right:
            raise Damaged(
                f"{self.name}: its SHA-256 is not the one it was written with"
            )


def content(ids: Sequence[int] | None, digests: Sequence[str]) -> tuple[object, ...]:
    """``Shard.content`` of clients' or, where ``ids`` is None, the server's
    ``digests``.
    """
    return (None if ids is None else tuple(ids), *digests)


def groups(rows: "Snapshot") -> Iterator[list[int]]:
    """The ids of a rank's clients, ascending, in groups of bounded size; one group is
    for one file.

    Clients whose state was never put are left out. They count for where groups begin
    and end, so that other groups stay as they are when the state of one is put. Where
    few of many were put, a group spans more clients, so that there is a file for as
    many rows and not for nearly every row; the span halves when twice as many were
    put, and only then do all groups change.
    """
    size = rows.template.size
    most = max(1, min(GROUP_CLIENTS, GROUP_BYTES // max(1, size)))
    written = np.array(sorted(rows.written), np.int64)
    clients_per_written = len(rows.ids) // max(1, len(written))
    span = most * _power_of_two_below(clients_per_written)
    of_group = np.searchsorted(rows.ids, written) // span
    begins = np.flatnonzero(np.diff(of_group)) + 1
    for group in np.split(written, begins):
        for begin in range(0, len(group), most):
            yield group[begin : begin + most].tolist()


def _power_of_two_below(number: int) -> int:
    """The largest power of two up to ``number``, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def write_clients(folder: Path, ids: list[int], rows: "Mapping[int, Row]") -> Shard:
    """Write the state of n clients: datasets [n, *shape] by tensor, and ``ids`` [n].
    Raises RunFailure.
    """
    tensors = [
        rows[client].tensors for client in ids
    ]  # once each: they may come from a GPU or a file
    arrays = {
        _encode(name): np.stack([one[name].numpy() for one in tensors])
        for name in tensors[0]
    }
    return _write(
        folder,
        "clients",
        {"ids": np.array(ids), **arrays},
        ids,
        [rows[client].digest for client in ids],
    )


def write_server(folder: Path, state: "Mapping[str, Tensor]", digest: str) -> Shard:
    """Write the server's state, CPU tensors of any shape; ``digest``: of it. Raises
    RunFailure.
    """
    return _write(
        folder,
        "server",
        {_encode(name): tensor.numpy() for name, tensor in state.items()},
        None,
        [digest],
    )


def read(path: Path, rows: list[int] | None) -> "dict[str, Tensor]":
    """The tensors in a file by name, whole or only the given ascending ``rows``.

    To be called after ``Shard.verify``. Raises Damaged.
    """
    import torch

    arrays = hdf5.select(path, rows)
    return {
        _decode(name): torch.from_numpy(array)
        for name, array in arrays.items()
        if name != "ids"
    }


def _write(
    folder: Path,
    kind: str,
    arrays: dict[str, np.ndarray],
    ids: list[int] | None,
    digests: list[str],
) -> Shard:
    data = hdf5.encode(arrays, {})
    sha256 = hashlib.sha256(data).hexdigest()
    name = _name(kind, sha256)
    atomic.write(folder / name, data)
    return Shard(name, sha256, len(data), ids, digests)


def _name(kind: str, sha256: str) -> str:
    return f"{kind}-{sha256}.h5"


def _encode(name: str) -> str:
    """A tensor's name as a dataset's, without what HDF5 reads as a path.

    The leading '=' keeps it apart from the dataset ``ids``.
    """
    return "=" + quote(name, safe=" ()[],").replace(".", "%2E")


def _decode(name: str) -> str:
    return unquote(name.removeprefix("="))
