"""HDF5 files as bytes, with a checksum.

Files are built in memory and written by ``atomic.write``, because HDF5 does not survive
a full disk: closing a file after a failed write can cause a segmentation fault.

Files that are read may hold only plain numbers, stored in the file itself. Other HDF5
files can open further files, follow links, fill the memory from a few bytes or create
Python objects. Therefore the whole file is checked before any data are read.
"""

import hashlib
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5p, h5s

from hpcfl.files import scratch, untrusted_files
from hpcfl.files.atomic import Damaged, describe_reason

# oldest format whose metadata have checksums, so that a flipped bit is an error and not
# a crash
FORMAT = "v110"
HEADER = 4096  # bytes; HDF5 needs fewer to describe a dataset
USER_BLOCK = 512  # bytes at the beginning of a file that HDF5 skips; its minimum

TYPES = {
    np.dtype(kind)
    for kind in (bool, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
OBJECTS = 4000  # limit for a file
ATTRIBUTES = 100  # limit for the root group
DEPTH = 8  # largest depth of nested groups


def seal(kind: str, content: bytes | memoryview) -> bytes:
    """Return an HDF5 file's bytes, preceded by a header with kind and checksum.

    HDF5 skips the header, so h5py can open the result as any other file.

    Args:
        kind: kind of the file, such as "partition".
        content: bytes of the file.
    """
    note = f"hpcfl {kind} 1 sha256={hashlib.sha256(content).hexdigest()}\n".encode()
    return note.ljust(USER_BLOCK, b"\0") + content


def unseal(kind: str, data: bytes) -> bytes:
    """Return the content that was passed to ``seal``.

    Call it before HDF5 reads anything, because a flipped bit can cause an endless loop
    in HDF5.

    Args:
        kind: expected kind of the file.
        data: result of ``seal``.

    Raises:
        Damaged: The kind or the checksum is wrong.
    """
    content = data[USER_BLOCK:]
    if not data.startswith(f"hpcfl {kind} 1 ".encode()):
        raise Damaged(f"not a '{kind}' file of hpcfl")
    if data[:USER_BLOCK] != seal(kind, content)[:USER_BLOCK]:
        raise Damaged("its checksum is wrong")
    return content


def encode(datasets: dict[str, np.ndarray], attributes: dict[str, str]) -> memoryview:
    """Return an HDF5 file's bytes with the given datasets and attributes.

    The bytes do not depend on the order of datasets and attributes.

    Args:
        datasets: arrays by path.
        attributes: texts of the root group by name.

    Raises:
        RunFailure: $TMPDIR is full.
    """
    buffer = scratch.open_file(
        sum(value.nbytes + HEADER for value in datasets.values()) + HEADER
    )
    with h5py.File(buffer, "w", libver=FORMAT) as file:
        for name, value in sorted(datasets.items()):
            # times would change the bytes
            file.create_dataset(name, data=value, track_times=False)
        file.attrs.update(sorted(attributes.items()))
    return scratch.get_content(buffer)


def decode(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the datasets and attributes that were passed to ``encode``.

    Raises:
        Damaged: The file is damaged.
        RunFailure: $TMPDIR is full.
    """
    access = h5p.create(h5p.FILE_ACCESS)
    # HDF5 lists the data sets of memory twice as fast as those of a Python object.
    access.set_fapl_core(backing_store=False)
    access.set_file_image(data)
    with (
        _convert_errors(),
        h5py.File(h5f.open(b"memory", h5f.ACC_RDONLY, access)) as file,
    ):
        datasets = list_datasets(file, len(data))
        arrays = {name: _read_whole(dataset) for name, dataset in datasets.items()}
        return arrays, read_texts(file, len(data))


def select(path: Path, rows: list[int] | None) -> dict[str, np.ndarray]:
    """Return the datasets of a file by path.

    Args:
        path: the file.
        rows: ascending numbers of the rows to read; None for all.

    Raises:
        FileNotFoundError: The file is missing.
        Damaged: The file is damaged.
        RunFailure: $TMPDIR is full.
    """
    with (
        untrusted_files.opened(path) as source,
        _opened(source) as datasets,
    ):
        if rows is None:
            return {name: _read_whole(dataset) for name, dataset in datasets.items()}
        return {
            name: np.asarray(h5py.Dataset(dataset)[rows])
            for name, dataset in datasets.items()
        }


def read_into(path: Path, name: str, target: np.ndarray) -> None:
    """Read a dataset of a file into an array.

    Args:
        path: the file.
        name: path of the dataset.
        target: contiguous array that receives the data.

    Raises:
        FileNotFoundError: The file is missing.
        Damaged: The file is damaged, or the dataset has another type or shape.
    """
    with (
        untrusted_files.opened(path) as source,
        _opened(source) as datasets,
    ):
        dataset = datasets[name]
        found = (dataset.dtype, dataset.shape)
        if found != (target.dtype, target.shape):
            raise Damaged(f"{name!r} has another type or shape than expected")
        dataset.read(h5s.ALL, h5s.ALL, target)


@contextmanager
def _opened(source: BinaryIO) -> Iterator[dict[str, h5d.DatasetID]]:
    """Open a file, and yield its datasets, which are safe to read.

    Exceptions of h5py in the block become Damaged.
    """
    size = source.seek(0, io.SEEK_END)
    # Locks are unnecessary, because published files never change, and some file
    # systems lack them.
    with _convert_errors(), h5py.File(source, "r", locking=False) as file:
        yield list_datasets(file, size)


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert exceptions of h5py in a block to Damaged.

    A broken file can raise each of the types below.
    """
    try:
        yield
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        TypeError,
        MemoryError,
    ) as error:
        raise Damaged(describe_reason(error)) from error


def _read_whole(dataset: h5d.DatasetID) -> np.ndarray:
    """Return a whole dataset as an array that may be larger than memory."""
    dtype, shape = dataset.dtype, dataset.shape
    flat = scratch.allocate(math.prod(shape) * dtype.itemsize)
    array: np.ndarray = flat.view(dtype).reshape(shape)
    if array.size:  # HDF5 fails for empty datasets
        dataset.read(h5s.ALL, h5s.ALL, array)
    return array


def list_datasets(file: h5py.File, size: int) -> dict[str, h5d.DatasetID]:
    """Return all datasets of a file by path, including those in groups.

    Datasets are opened by h5py's low-level interface, which is faster.

    Args:
        file: the open file.
        size: size of the file in bytes.

    Raises:
        Damaged: A dataset does not hold plain numbers. A broken file may also raise
            exceptions of h5py.
    """
    by_path: dict[str, h5d.DatasetID] = {}
    groups, objects, left = [("", file["/"].id)], 0, size
    while groups:
        path, group = groups.pop()
        objects += len(group)
        if objects > OBJECTS or path.count("/") > DEPTH:
            raise Damaged(
                f"more than {OBJECTS} objects, or groups nested more than {DEPTH} deep"
            )
        for name in group:
            inside = path + name.decode()
            item = _get_item(group, name, inside)
            if isinstance(item, h5g.GroupID):
                groups.append((f"{inside}/", item))
            else:
                by_path[inside] = item
                left -= _count_bytes(inside, item)
                # each hard link to the same data counts, because each would be read
                if left < 0:
                    raise Damaged(f"more data than the file's {size} bytes")
    return by_path


def read_texts(file: h5py.File, size: int) -> dict[str, str]:
    """Return the text attributes of the root group by name.

    Args:
        file: the open file.
        size: largest total number of characters.

    Raises:
        Damaged: An attribute is not a text. A broken file may also raise exceptions of
            h5py.
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


def _get_item(
    group: h5g.GroupID, name: bytes, path: str
) -> h5g.GroupID | h5d.DatasetID:
    """Return the group or dataset ``name`` of a group.

    Raises Damaged for links and other objects; its message has their ``path``.
    """
    is_link = group.links.get_info(name).type != h5l.TYPE_HARD
    if b"/" in name or name == b"." or is_link:
        raise Damaged(f"{path!r} is a link")
    item = h5o.open(group, name)
    if not isinstance(item, h5g.GroupID | h5d.DatasetID):
        raise Damaged(f"{path!r} is neither a group nor a dataset")
    return item


def _count_bytes(name: str, dataset: h5d.DatasetID) -> int:
    """Return the size in bytes of a dataset with plain contiguous storage.

    Raises Damaged for other datasets.
    """
    properties = dataset.get_create_plist()
    inside = (
        properties.get_layout() in (h5d.CONTIGUOUS, h5d.COMPACT)
        and not properties.get_external_count()
    )
    if not inside or properties.get_nfilters():
        raise Damaged(f"{name!r} is external, virtual, chunked or compressed")
    dtype, shape = dataset.dtype, dataset.shape
    if dtype not in TYPES:
        raise Damaged(f"{name!r} does not hold plain numbers")
    stored = dataset.get_storage_size()
    size = -1 if shape is None else math.prod(shape) * dtype.itemsize
    if size != stored:
        raise Damaged(f"{name!r} has shape {shape} and {stored} bytes")
    return size
