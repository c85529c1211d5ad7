"""Arrays that may be larger than memory, such as all models of a run on rank 0.

An array beyond a limit is an unnamed file in $TMPDIR, mapped into memory; the system
moves pages as needed. The file disappears when the process ends, for any reason.
"""

import ctypes
import io
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from hpcfl.errors import RunFailure
from hpcfl.files import atomic, heartbeat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PART_BYTES = 1 << 24  # size of a block of rows
LARGE = 1 << 30  # bytes; larger HDF5 files are built in $TMPDIR
REUSED = 1 << 20  # bytes; memory of smaller arrays is not kept for reuse
# Parameters of glibc's mallopt (mallopt(3)), with values in bytes. glibc refuses a
# larger mmap threshold.
M_TRIM_THRESHOLD, TRIM_THRESHOLD = -1, 1 << 28
M_MMAP_THRESHOLD, MMAP_THRESHOLD = -3, 1 << 25


class Scratch:
    """Arrays in memory up to a limit, and in files beyond it.

    Memory of a large array is reused for the next array of the same size: each round
    needs the arrays of the previous one, and the system takes longer to clear new pages
    than a server to mix models. The total of used and waiting memory never exceeds the
    largest memory in use so far.
    """

    def __init__(self, limit: float = math.inf) -> None:
        """Set the limit for arrays in memory that are in use, in bytes."""
        self.limit = limit
        self._held: dict[int, int] = {}  # bytes of arrays in memory, by id
        self._most = 0  # largest number of bytes in use so far
        self._free: list[np.ndarray] = []  # memory waiting for reuse, oldest first

    def empty_bytes(self, size: int) -> np.ndarray:
        """Return an uninitialised array of ``size`` bytes.

        Raises RunFailure if $TMPDIR is full.
        """
        held = sum([*self._held.values()]) + size
        if size and held > self.limit:
            return map_file(size)
        self._most = max(self._most, held)
        memory = self._take(size, self._most - held)
        # Tensors and views of the array keep it alive. Without the memoryview they
        # would refer to ``memory`` and not to the array.
        array = np.frombuffer(memory.data, np.uint8)
        self._held[id(array)] = size
        weakref.finalize(array, self._give_back, id(array), memory)
        return array[:size]

    def release(self) -> None:
        """Return waiting memory to the system."""
        self._free.clear()

    def _take(self, size: int, spare: int) -> np.ndarray:
        """Return memory for ``size`` bytes; afterwards at most ``spare`` bytes are
        waiting.
        """
        found = None
        for place, memory in enumerate(self._free):
            if len(memory) == size:
                found = self._free.pop(place)
                break
        while sum(map(len, self._free)) > spare:
            del self._free[0]
        return np.empty(max(1, size), np.uint8) if found is None else found

    def _give_back(self, key: int, memory: np.ndarray) -> None:
        """Record that an array is no longer used, and keep its memory if it is large."""
        del self._held[key]
        if len(memory) >= REUSED:
            self._free.append(memory)

    def empty(
        self, shape: Sequence[int], dtype: "torch.dtype | None" = None
    ) -> "Tensor":
        """Return an uninitialised CPU tensor, by default float32.

        Raises RunFailure if $TMPDIR is full.
        """
        import torch

        dtype = dtype or torch.float32
        array = self.empty_bytes(math.prod(shape) * dtype.itemsize)
        return torch.from_numpy(array).view(dtype).view(tuple(shape))

    def copy(self, tensor: "Tensor") -> "Tensor":
        """Return a contiguous CPU copy of a tensor. Raises RunFailure."""
        import torch

        found = self.empty(tensor.shape, tensor.dtype)
        targets = split_rows(torch.atleast_1d(found))
        sources = split_rows(torch.atleast_1d(tensor.detach()))
        for target, part in zip(targets, sources, strict=True):
            target.copy_(part)
        return found


def keep_freed_memory() -> None:
    """Let glibc's allocator keep 256 MB of freed memory in this process.

    A training step frees a few tensors of the size of a model. By default glibc returns
    their memory to the system, which must clear new pages in the next step. Other C
    libraries are not changed.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def return_freed_memory() -> None:
    """Let glibc's allocator return freed memory to the system.

    This reverts ``keep_freed_memory``: freed blocks from REUSED bytes on are returned.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_TRIM_THRESHOLD, REUSED)
        library.mallopt(M_MMAP_THRESHOLD, REUSED)
        library.malloc_trim(0)


def map_file(size: int) -> np.ndarray:
    """Return an array of ``size`` bytes in a file. Raises RunFailure if $TMPDIR is
    full.
    """
    place = find_folder()
    with (
        atomic.explain_errors(place),
        tempfile.TemporaryFile(prefix="hpcfl-", dir=place) as file,
    ):
        # a full disk is an error here, and would be a crash later
        os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, np.uint8, "r+", shape=(size,))


def allocate(size: int) -> np.ndarray:
    """Return an array of ``size`` bytes, in a file if it is LARGE. Raises RunFailure."""
    return map_file(size) if size > LARGE else np.empty(size, np.uint8)


def split_rows(matrix: "Tensor") -> "Iterator[Tensor]":
    """Yield blocks of neighbouring rows, with a heartbeat after each block.

    Matrices in files may be slow, because other processes use the disk too.
    """
    for part in matrix.split(max(1, PART_BYTES // max(1, matrix[:1].nbytes))):
        yield part
        heartbeat.beat()


def find_folder() -> str:
    """Return the folder for temporary files: $TMPDIR or the system's default.

    Raises RunFailure.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise RunFailure(
            "no temporary folder is writable; set TMPDIR to a writable folder"
        ) from None


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """Create a folder below ``find_folder()``, and remove it at the end of the block.

    Raises RunFailure.
    """
    place = find_folder()
    with atomic.explain_errors(place):
        temporary = tempfile.TemporaryDirectory(
            prefix="hpcfl-", dir=place, ignore_cleanup_errors=True
        )
    with temporary as path:
        yield Path(path)


def open_file(size: int) -> IO[bytes]:
    """Open an unnamed file for writing, in memory, or in $TMPDIR if it is LARGE.

    Args:
        size: Largest expected size in bytes.

    Raises:
        RunFailure: $TMPDIR is full.
    """
    if size <= LARGE:
        return io.BytesIO()
    map_file(size)  # a full disk is an error here, and could be a crash of HDF5 later
    return tempfile.TemporaryFile(prefix="hpcfl-", dir=find_folder())


def get_content(file: IO[bytes]) -> memoryview:
    """Return the bytes of a file from ``open_file``, to which nothing more is written."""
    if isinstance(file, io.BytesIO):
        return file.getbuffer()
    with file:
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
