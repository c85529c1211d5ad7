"""Pictures of a data set decoded once into one file, which the ranks of a node map into
memory.
"""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import atomic, user_files

FILE = "hpcfl-decoded.npy"

# A function of an entry, which describes a picture before it is decoded, to its record.
Decode = Callable[[Any], tuple[Any, ...]]


def table(
    name: str,
    root: Path,
    folder: Path,
    record: np.dtype,
    entries: Callable[[], Sequence[Any]],
    decode: Decode,
) -> np.ndarray:
    """Return the records of all pictures [n]: mapped, private to this process, or
    decoded now where ``write`` has not been called yet.

    Args:
        name: Of the data set, and ``root``: the folder of all data sets, for errors.
        folder: Where the file of decoded pictures would be.
        record: The type of a picture's record.
        entries: Finds all pictures; called only where they must be decoded.
        decode: Makes the record of an entry.

    Raises:
        UserError: The file is anything else, or a picture cannot be read.
    """
    path = folder / FILE
    mapped: np.ndarray | None = None
    try:
        user_files.opened(path).close()
        mapped = np.lib.format.open_memmap(path, mode="c")
    except FileNotFoundError:
        found = entries()
        own = np.empty(len(found), record)
        _fill(own, found, decode)
        return own
    except (OSError, ValueError):
        pass  # it is refused below
    if mapped is None or mapped.dtype != record or mapped.ndim != 1:
        raise UserError(
            f"{path}: damaged, or not what hpcfl writes; to write it again: "
            f"hpcfl data download {name} --root {root}"
        )
    return mapped


def write(
    folder: Path, record: np.dtype, entries: Sequence[Any], decode: Decode
) -> None:
    """Decode all ``entries`` into the file, whole or not at all. Raises UserError."""
    path = folder / FILE
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        mapped = np.lib.format.open_memmap(temporary, "w+", record, (len(entries),))
        _fill(mapped, entries, decode)
        mapped.flush()
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({atomic.reason(error)})") from None
    finally:
        temporary.unlink(missing_ok=True)


def fetch(name: str, root: Path, folder: Path, url: str, md5: str) -> None:
    """Fetch an archive and unpack it in a folder. Raises UserError."""
    # torchvision takes a second to import and is needed here only.
    from hpcfl.data.vision import torchvision

    try:
        torchvision.datasets.utils.download_and_extract_archive(
            url, str(folder), md5=md5
        )
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{name} could not be downloaded to {root}: {' '.join(str(error).split())}"
        ) from None


def _fill(records: np.ndarray, entries: Sequence[Any], decode: Decode) -> None:
    """Decode each entry into its place in ``records`` [n]."""
    for position, entry in enumerate(entries):
        records[position] = decode(entry)
