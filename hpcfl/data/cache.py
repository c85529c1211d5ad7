"""Data sets that are expensive to decode: decoded once into a checked file, then mapped into memory."""

import fcntl
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcfl.errors import RunFailure
from hpcfl.storage import atomic


def kept(source: Path, name: str, dtype: DTypeLike, entries: Callable[[], Sequence[Any]],
         decode: Callable[[Any], Any]) -> NDArray[Any]:
    """``decode(entry)`` of all ``entries()``, records of ``dtype``: from the cache file ``name``, which the first call writes.

    It lies in ``source``, the folder of the data, else where that cannot be written in the user's cache folder, else nowhere. It
    is a .npy file beside its checksum in sha256sum's format; a damaged one is written anew. Delete it after changing the data.
    """
    places = [source / name, _user_folder(source) / name]
    for path in places:
        if (found := _load(path)) is not None:
            return found
    todo = entries()
    for path in places:
        try:
            with _alone(path):  # the ranks of a node wait for the one that decodes
                found = _load(path)
                return _write(path, dtype, todo, decode) if found is None else found
        except (OSError, RunFailure):
            continue
    return _fill(np.empty(len(todo), dtype), todo, decode)


def _user_folder(source: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hpcfl" / hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]


def _load(path: Path) -> NDArray[Any] | None:
    """The array, mapped and private to this process, or None if it is not there whole. Costs one pass over the file."""
    try:
        if _sidecar(path).read_text().split()[0] != atomic.sha256(path):
            return None
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, IndexError):
        return None


def _write(path: Path, dtype: DTypeLike, todo: Sequence[Any], decode: Callable[[Any], Any]) -> NDArray[Any]:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        array = np.lib.format.open_memmap(temporary, "w+", dtype, (len(todo),))
        _fill(array, todo, decode).flush()
        del array
        os.replace(temporary, path)
        atomic.write(_sidecar(path), f"{atomic.sha256(path)}  {path.name}\n".encode())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _fill(array: Any, todo: Sequence[Any], decode: Callable[[Any], Any]) -> Any:
    for position, entry in enumerate(todo):
        array[position] = decode(entry)
    return array


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time, where the file system offers locks. Raises OSError where nothing can be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
