"""HDF5 files as bytes, with a checksum.

Files are built in memory and written by ``atomic.write``. HDF5 itself does not survive
a full disk: closing the file after a failed write can cause a segmentation fault.

A file that is read holds only plain numbers, stored in the file itself. Other HDF5
files can open further files, follow links, unpack a few bytes into all of memory or
create Python objects. The checks therefore cover the whole file before any data is read.
"""

import hashlib
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

from hpcfl.files import scratch, untrusted_files
from hpcfl.files.atomic import Damaged, describe_reason

# the oldest format whose metadata carry checksums: a flipped bit is an error, not a
# crash
FORMAT = "v110"
HEADER = 4096  # bytes, more than HDF5 needs to describe a dataset
USER_BLOCK = (
    512  # bytes at the beginning of a file that HDF5 skips, the fewest it allows
)

TYPES = {
    np.dtype(kind)
    for kind in (bool, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
OBJECTS = 4000  # the most in a file
ATTRIBUTES = 100  # the most of the root
DEPTH = 8  # the most levels of groups in groups


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

    Datasets are made by h5py's low-level interface: ``create_dataset`` takes twice as
    long, and a file of a short round has dozens of them.
    """
    buffer = scratch.File(
        sum(value.nbytes + HEADER for value in datasets.values()) + HEADER
    )
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    timeless = h5p.create(h5p.DATASET_CREATE)
    timeless.set_obj_track_times(False)  # a time would change the bytes
    with h5py.File(buffer, "w", libver=FORMAT) as file:
        for name, value in sorted(datasets.items()):
            array = np.asarray(value, order="C")
            kind = h5t.py_create(array.dtype, logical=True)
            space = h5s.create_simple(array.shape)
            dataset = h5d.create(
                file.id, name.encode(), kind, space, dcpl=timeless, lcpl=links
            )
            if array.size:
                dataset.write(h5s.ALL, h5s.ALL, array)
        file.attrs.update(sorted(attributes.items()))
    return buffer.content()


def decode(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the datasets and attributes that ``encode`` received. Raises Damaged."""
    with _opened(io.BytesIO(data), len(data)) as (file, datasets):
        arrays = {name: dataset[()] for name, dataset in datasets.items()}
        return arrays, read_texts(file, len(data))


def select(path: Path, rows: list[int] | None) -> dict[str, np.ndarray]:
    """Return the datasets of a file by path, whole or only the ascending ``rows``.

    Raises FileNotFoundError, Damaged, or RunFailure where $TMPDIR is full.
    """
    with (
        untrusted_files.opened(path) as source,
        _opened(source, os.fstat(source.fileno()).st_size) as (_, datasets),
    ):
        return {
            name: _read_whole(dataset) if rows is None else np.asarray(dataset[rows])
            for name, dataset in datasets.items()
        }


def read_into(path: Path, name: str, target: np.ndarray) -> None:
    """Read the dataset ``name`` of a file into a contiguous array.

    Raises FileNotFoundError, or Damaged, also for a dataset of another type or shape.
    """
    with (
        untrusted_files.opened(path) as source,
        _opened(source, os.fstat(source.fileno()).st_size) as (_, datasets),
    ):
        dataset = datasets[name]
        found = (dataset.dtype, dataset.shape)
        if found != (target.dtype, target.shape):
            raise Damaged(f"{name!r} has another type or shape than expected")
        dataset.read_direct(target)


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
            yield file, list_datasets(file, size)
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        TypeError,
        MemoryError,
    ) as error:
        raise Damaged(describe_reason(error)) from error


def _read_whole(dataset: h5py.Dataset) -> np.ndarray:
    """Read a whole dataset into an array that may be larger than memory."""
    flat = scratch.allocate(dataset.size * dataset.dtype.itemsize)
    array: np.ndarray = flat.view(dataset.dtype).reshape(dataset.shape)
    if dataset.size:  # HDF5 fails for empty datasets
        dataset.read_direct(array)
    return array


def list_datasets(file: h5py.File, size: int) -> dict[str, h5py.Dataset]:
    """Return all datasets of a file of ``size`` bytes by path, including groups.

    Raises Damaged for other datasets, and h5py's exceptions for a broken file.
    """
    by_path: dict[str, h5py.Dataset] = {}
    groups, objects, left = [("", file)], 0, size
    while groups:
        path, group = groups.pop()
        objects += len(group)
        if objects > OBJECTS or path.count("/") > DEPTH:
            raise Damaged(
                f"more than {OBJECTS} objects, or groups nested more than {DEPTH} deep"
            )
        for name in group:
            item = _get_item(group, name)
            if isinstance(item, h5py.Group):
                groups.append((f"{path}{name}/", item))
            else:
                by_path[path + name] = item
                left -= _count_bytes(item)
                if (
                    left < 0
                ):  # hard links to the same data count each time, for each would be read
                    raise Damaged(f"more data than the file's {size} bytes")
    return by_path


def read_texts(file: h5py.File, size: int) -> dict[str, str]:
    """Return the root's text attributes, of at most ``size`` characters in all.

    Raises Damaged for other attributes, and h5py's exceptions for a broken file.
    """
    if h5a.get_num_attrs(file.id) > ATTRIBUTES:
        raise Damaged(f"more than {ATTRIBUTES} attributes")
    texts: dict[str, str] = {}
    for name in file.attrs:
        attribute = file.attrs.get_id(name)
        kind = attribute.get_type()
        if (
            not isinstance(kind, h5py.h5t.TypeStringID)
            or not kind.is_variable_str()
            or attribute.get_space().get_simple_extent_type() != h5s.SCALAR
        ):
            raise Damaged(f"attribute {name!r} is not a text")
        texts[name] = file.attrs[name]
        size -= len(texts[name])
        if size < 0:
            raise Damaged("more text than the file has bytes")
    return texts


def _get_item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the group or dataset ``name`` of a group. Raises Damaged for anything
    else.
    """
    if (
        "/" in name
        or name == "."
        or not isinstance(group.get(name, getlink=True), h5py.HardLink)
    ):
        raise Damaged(f"{name!r} is a link")
    item = group[name]
    if not isinstance(item, h5py.Group | h5py.Dataset):
        raise Damaged(f"{name!r} is neither a group nor a dataset")
    return item


def _count_bytes(dataset: h5py.Dataset) -> int:
    """Return the size of a dataset with plain contiguous storage. Raises Damaged for
    others.
    """
    properties = dataset.id.get_create_plist()
    inside = (
        properties.get_layout() in (h5d.CONTIGUOUS, h5d.COMPACT)
        and not properties.get_external_count()
    )
    if not inside or properties.get_nfilters():
        raise Damaged(f"{dataset.name!r} is external, virtual, chunked or compressed")
    if dataset.dtype not in TYPES:
        raise Damaged(f"{dataset.name!r} has a type that is no plain number")
    size = (
        math.prod(dataset.shape) * dataset.dtype.itemsize
        if dataset.shape is not None
        else -1
    )
    if size != dataset.id.get_storage_size():
        raise Damaged(
            f"{dataset.name!r} has shape {dataset.shape} and {dataset.id.get_storage_size()} bytes"
        )
    return size
