"""HDF5 files as bytes, with a checksum.

Files are built in memory and written by ``atomic.write``. HDF5 itself does not survive
a full disk: closing the file after a failed write can cause a segmentation fault.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np

from hpcfl.files import plain_hdf5, scratch, untrusted_files
from hpcfl.files.atomic import Damaged, reason

# the oldest format whose metadata carry checksums: a flipped bit is an error, not a
# crash
FORMAT = "v110"
HEADER = 4096  # bytes, more than HDF5 needs to describe a dataset
USER_BLOCK = (
    512  # bytes at the beginning of a file that HDF5 skips, the fewest it allows
)


def seal(kind: str, content: bytes | memoryview) -> bytes:
    """Return an HDF5 file's bytes behind a header with its kind and checksum.

    HDF5 skips the header, so that h5py opens the result like any other file.
    """
    note = f"hpcfl {kind} 1 sha256={hashlib.sha256(content).hexdigest()}\n".encode()
    return note.ljust(USER_BLOCK, b"\0") + content


def unseal(kind: str, data: bytes) -> bytes:
    """Return the content that ``seal`` received.

    Call it before HDF5 reads anything, because one flipped bit can make HDF5 loop.
    Raises Damaged for another kind or a wrong checksum.
    """
    content = data[USER_BLOCK:]
    if not data.startswith(f"hpcfl {kind} 1 ".encode()):
        raise Damaged(f"not a file of hpcfl's kind '{kind}'")
    if data[:USER_BLOCK] != seal(kind, content)[:USER_BLOCK]:
        raise Damaged("its checksum is wrong")
    return content


def encode(datasets: dict[str, np.ndarray], attributes: dict[str, str]) -> memoryview:
    """Return an HDF5 file's bytes with the given datasets and root attributes.

    The bytes do not depend on the order of datasets and attributes. Raises RunFailure.
    """
    buffer = scratch.File(
        sum(value.nbytes + HEADER for value in datasets.values()) + HEADER
    )
    with h5py.File(buffer, "w", libver=FORMAT) as file:
        for name, value in sorted(datasets.items()):
            file.create_dataset(name, data=value)
        file.attrs.update(sorted(attributes.items()))
    return buffer.content()


def decode(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the datasets and attributes that ``encode`` received. Raises Damaged."""
    with _opened(io.BytesIO(data), len(data)) as (file, datasets):
        arrays = {name: dataset[()] for name, dataset in datasets.items()}
        return arrays, plain_hdf5.attributes(file, len(data))


def select(path: Path, rows: list[int] | None) -> dict[str, np.ndarray]:
    """Return the datasets of a file by path, whole or only the ascending ``rows``.

    Raises FileNotFoundError, Damaged, or RunFailure where $TMPDIR is full.
    """
    with (
        untrusted_files.opened(path) as source,
        _opened(source, os.fstat(source.fileno()).st_size) as (_, datasets),
    ):
        return {
            name: _whole(dataset) if rows is None else np.asarray(dataset[rows])
            for name, dataset in datasets.items()
        }


@contextmanager
def _opened(
    source: BinaryIO, size: int
) -> Iterator[tuple[h5py.File, dict[str, h5py.Dataset]]]:
    """Open a file of ``size`` bytes and yield it with its datasets, which are safe to
    read.

    Exceptions of h5py in the block become Damaged: a broken file can raise each of the
    types below.
    """
    try:
        # Published files never change: HDF5's locks would protect nothing, and some
        # file systems have none.
        with h5py.File(source, "r", locking=False) as file:
            yield file, plain_hdf5.datasets(file, size)
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        TypeError,
        MemoryError,
    ) as error:
        raise Damaged(reason(error)) from error


def _whole(dataset: h5py.Dataset) -> np.ndarray:
    """Read a whole dataset into an array that may be larger than memory."""
    flat = scratch.allocate(dataset.size * dataset.dtype.itemsize)
    array: np.ndarray = flat.view(dataset.dtype).reshape(dataset.shape)
    if dataset.size:  # HDF5 fails for empty datasets
        dataset.read_direct(array)
    return array
