"""Matrices that may be larger than memory, such as all models of a run on rank 0.

Matrices up to a limit are in memory. Those above the limit are in unnamed files in
$TMPDIR, mapped into memory: the system moves pages as needed. The files disappear
however the process ends.
"""

import io
import math
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import Buffer  # part of Python from 3.12 on

from hpcfl.errors import RunFailure
from hpcfl.files import atomic, heartbeat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PART_BYTES = 1 << 24  # of rows that are worked on at once
_limit = math.inf  # bytes
_held: dict[
    int, int
] = {}  # the bytes of each array in memory that is still in use, by its id


def limit(size: float) -> None:
    """Set the bytes of such matrices that this process keeps in memory."""
    global _limit
    _limit = size


def empty_bytes(size: int) -> np.ndarray:
    """Return an uninitialised array of ``size`` bytes. Raises RunFailure where $TMPDIR
    is full.
    """
    if not size or sum([*_held.values()]) + size <= _limit:
        return _array(size)[:size]
    return _mapped(size)


def empty(shape: Sequence[int], dtype: "torch.dtype | None" = None) -> "Tensor":
    """Return an uninitialised CPU tensor, of float32 by default. Raises RunFailure where
    $TMPDIR is full.
    """
    import torch

    dtype = dtype or torch.float32
    array = empty_bytes(math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


def copy(tensor: "Tensor") -> "Tensor":
    """Return a contiguous CPU copy that shares no memory with ``tensor``. Raises
    RunFailure.
    """
    import torch

    found = empty(tensor.shape, tensor.dtype)
    for target, part in zip(
        parts(torch.atleast_1d(found)),
        parts(torch.atleast_1d(tensor.detach())),
        strict=True,
    ):
        target.copy_(part)
    return found


def parts(matrix: "Tensor") -> "Iterator[Tensor]":
    """Yield blocks of neighbouring rows, with a heartbeat after each block.

    Matrices in files are as slow as a disk that other processes use as well.
    """
    for part in matrix.split(max(1, PART_BYTES // max(1, matrix[:1].nbytes))):
        yield part
        heartbeat.beat()


def _array(size: int) -> np.ndarray:
    array = np.empty(max(1, size), np.uint8)
    _held[id(array)] = size
    weakref.finalize(
        array, _held.pop, id(array)
    )  # tensors and views of the array keep it alive
    return array


def folder() -> str:
    """Return the folder for temporary files, $TMPDIR or the system's. Raises
    RunFailure.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise RunFailure(
            "no temporary folder can be written; set TMPDIR to one that can"
        ) from None


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder below ``folder`` and remove it at the end of the block. Raises
    RunFailure.
    """
    place = folder()
    with atomic.explained(place):
        temporary = tempfile.TemporaryDirectory(
            prefix="hpcfl-", dir=place, ignore_cleanup_errors=True
        )
    with temporary as path:
        yield Path(path)


def _mapped(size: int) -> np.ndarray:
    place = folder()
    with (
        atomic.explained(place),
        tempfile.TemporaryFile(prefix="hpcfl-", dir=place) as file,
    ):
        os.posix_fallocate(
            file.fileno(), 0, size
        )  # a full disk fails here and not later by a crash
        return np.memmap(file, np.uint8, "r+", shape=(size,))


class File(io.RawIOBase):
    """A readable and writable file stored in such a matrix.

    capacity: the expected size in bytes; a larger content is copied to a larger matrix.
    """

    def __init__(self, capacity: int) -> None:
        self._bytes, self._end, self._position = empty_bytes(capacity), 0, 0

    def content(self) -> memoryview:
        """Return the written bytes, which are valid until the next write."""
        return self._bytes[: self._end].data

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (
            offset
            + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[
                whence
            ]
        )
        return self._position

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        self._reserve(size)
        self._bytes[self._end : size] = 0
        self._end = size
        return size

    def write(self, data: Buffer, /) -> int:
        given = memoryview(data)
        count, end = len(given), self._position + len(given)
        self._reserve(end)
        self._bytes[self._end : self._position] = 0  # a gap
        self._bytes.data[self._position : end] = given
        self._position, self._end = end, max(self._end, end)
        return count

    def readinto(self, buffer: Buffer, /) -> int:
        wanted = memoryview(buffer)
        data = self.content()[self._position : self._position + len(wanted)]
        wanted[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _reserve(self, size: int) -> None:
        if size > len(self._bytes):
            larger = empty_bytes(2 * size)
            larger[: self._end] = self._bytes[: self._end]
            self._bytes = larger
