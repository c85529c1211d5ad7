"""HDF5 files as bytes, and a checksum around them.

A file is built in memory and written by ``atomic.write``, because HDF5 itself does not
survive a full disk: after a failed write, closing the file can end the process with a
segmentation fault.
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

from hpcfl.files import foreign, plain_hdf5, scratch
from hpcfl.files.atomic import Damaged, reason

# the oldest format whose metadata carry checksums: a flipped bit is an error, not a
# crash
FORMAT = "v110"
HEADER = 4096  # bytes, more than HDF5 needs to describe a dataset
USER_BLOCK = (
    512  # bytes at the beginning of a file that HDF5 skips, the fewest it allows
)


def seal(kind: str, content: bytes | memoryview) -> bytes:
    """The bytes of an HDF5 file with its kind and a checksum before them, where HDF5
    skips them.

    h5py opens the result as any other file.
    """
    note = f"hpcfl {kind} 1 sha256={hashlib.sha256(content).hexdigest()}\n".encode()
    return note.ljust(USER_BLOCK, b"\0") + content


def unseal(kind: str, data: bytes) -> bytes:
    """The content that ``seal`` was given. Raises Damaged for another kind or a wrong
    checksum.

    To be called before HDF5 reads anything, because one flipped bit can make it loop.
    """
    content = data[USER_BLOCK:]
    if not data.startswith(f"hpcfl {kind} 1 ".encode()):
        raise Damaged(f"not a file of hpcfl's kind '{kind}'")
    if data[:USER_BLOCK] != seal(kind, content)[:USER_BLOCK]:
        raise Damaged("its checksum is wrong")
    return content


def encode(datasets: dict[str, np.ndarray], attributes: dict[str, str]) -> memoryview:
    """The bytes of an HDF5 file with these datasets by path and attributes of the root.
    Raises RunFailure.

    The bytes do not depend on the order in which datasets and attributes are given.
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
    """The datasets and attributes that ``encode`` was given. Raises Damaged."""
    with _opened(io.BytesIO(data), len(data)) as (file, datasets):
        arrays = {name: dataset[()] for name, dataset in datasets.items()}
        return arrays, plain_hdf5.attributes(file, len(data))


def select(path: Path, rows: list[int] | None) -> dict[str, np.ndarray]:
    """The datasets of a file by path, whole or only the given ascending ``rows``.

    Raises FileNotFoundError, Damaged, or RunFailure where $TMPDIR is full.
    """
    with (
        foreign.opened(path) as source,
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
    """An open file of ``size`` bytes and its datasets by path, each of which is safe to
    read.

    Raises Damaged, also for what h5py raises inside the block: a broken file can make
    it raise all of these.
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
    """All of a dataset, in an array that may be larger than memory."""
    flat = scratch.empty_bytes(dataset.size * dataset.dtype.itemsize)
    array: np.ndarray = flat.view(dataset.dtype).reshape(dataset.shape)
    if dataset.size:  # HDF5 reads nothing into nothing, and calls it an error
        dataset.read_direct(array)
    return array
