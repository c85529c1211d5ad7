"""Data sets that are expensive to decode: decoded once into a checked file, then mapped
into memory.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import lock_descriptor
from numpy.typing import DTypeLike, NDArray

from hpcfl.errors import RunFailure
from hpcfl.files import atomic, foreign, heartbeat
from hpcfl.files.atomic import Damaged

SIDECAR_LIMIT = 4096  # bytes
PAUSE = 0.1  # seconds between two attempts to lock


def kept(
    source: Path,
    name: str,
    dtype: DTypeLike,
    entries: Callable[[], Sequence[Any]],
    decode: Callable[[Any], Any],
) -> NDArray[Any]:
    """``decode(entry)`` of all ``entries()``, an array of ``dtype``, decoded only where
    it is not cached.

    The first call writes the cache file ``name``: into ``source``, the folder of the
    data; where that cannot be written, into the user's cache folder; where neither can,
    nowhere. It is a .npy file beside its checksum in sha256sum's format. A damaged one
    is written anew; one of data that has changed since is not noticed and must be
    deleted.
    """
    places = [source / name, _user_folder(source) / name]
    for path in places:
        if (cached := _load(path, dtype)) is not None:
            return cached
    undecoded = entries()
    for path in places:
        try:
            with _alone(path):  # the ranks of a node wait for the one that decodes
                cached = _load(path, dtype)
                return (
                    _write(path, dtype, undecoded, decode) if cached is None else cached
                )
        except (OSError, RunFailure, Damaged):
            continue
    decoded: NDArray[Any] = _fill(np.empty(len(undecoded), dtype), undecoded, decode)
    return decoded


def _user_folder(source: Path) -> Path:
    """A folder in the user's cache folder that belongs to ``source`` alone."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (
        Path(base).expanduser()
        / "hpcfl"
        / hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    )


def _load(path: Path, dtype: DTypeLike) -> NDArray[Any] | None:
    """The array, mapped and private to this process, or None if it is not there whole.

    Costs one pass over the file for its checksum.
    """
    try:
        sidecar = foreign.read_bytes(_sidecar(path), SIDECAR_LIMIT).split()
        with foreign.opened(path) as file:
            if sidecar[:1] != [foreign.sha256(file).encode()]:
                return None
            file.seek(0)
            return _mapped(file, dtype)
    except (OSError, ValueError, Damaged):
        return None


def _mapped(file: BinaryIO, dtype: DTypeLike) -> NDArray[Any]:
    """The array of records in an open .npy file. Raises ValueError where it is anything
    else.
    """
    version = np.lib.format.read_magic(file)
    shape, fortran, stored = np.lib.format.read_array_header_1_0(file)
    if version != (1, 0) or stored != np.dtype(dtype) or fortran or len(shape) != 1:
        raise ValueError("not a list of these records")
    return np.memmap(file, stored, "c", offset=file.tell(), shape=shape)


def _write(
    path: Path, dtype: DTypeLike, entries: Sequence[Any], decode: Callable[[Any], Any]
) -> NDArray[Any]:
    """Decode into a temporary file, which takes its place before the checksum that
    makes it valid.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        array = np.lib.format.open_memmap(temporary, "w+", dtype, (len(entries),))
        _fill(array, entries, decode).flush()
        del array
        with foreign.opened(temporary) as file:
            checksum = foreign.sha256(file)
            file.seek(0)
            mapped = _mapped(file, dtype)
        os.replace(temporary, path)
        atomic.write(_sidecar(path), f"{checksum}  {path.name}\n".encode())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return mapped


def _fill(array: Any, entries: Sequence[Any], decode: Callable[[Any], Any]) -> Any:
    """Decode the entries into ``array`` one by one, with a heartbeat for each."""
    for position, entry in enumerate(entries):
        array[position] = decode(entry)
        heartbeat.beat()
    return array


def _sidecar(path: Path) -> Path:
    """The file with the checksum of the cache file ``path``."""
    return path.with_name(path.name + ".sha256")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lets one process at a time into the block, where the file system has locks.

    Raises OSError or Damaged where nothing can be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with foreign.opened(
        path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT
    ) as file:
        while not _taken(file):
            heartbeat.beat()
            time.sleep(PAUSE)
        yield


def _taken(file: BinaryIO) -> bool:
    """Try to lock once: True if it worked, and also where the file system has no locks."""
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return True
