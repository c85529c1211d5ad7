"""Your own data: a .npz file (``data.file``) with samples ``x`` [n, …] and class
numbers ``y`` [n], 0, 1, …

uint8 samples are images [n, channels, height, width] or values 0 … 255, scaled as the
built-in images; floats are taken as they are; other integers are token ids [n,
positions], 0 for padding. An integer ``classes`` in the file says how many classes
there are, for data in which the last ones do not occur; without it there is one more
than the greatest class number. An array ``client`` [n] of numbers or names says whose
each sample is, for ``partition.scheme = "by-client"``.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from hpcfl.data.checks import refuse_indistinct
from hpcfl.data.datasets import AS_THEY_ARE, DataDescription, Dataset, number_owners
from hpcfl.data.sources import _ranges
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, user_files, values, wording

MOST_CLASSES, MOST_TOKENS = 100_000, 10_000_000
KEYS = {"x", "y", "classes", "client"}  # arrays that are read
UNPACKED = 1 << 30  # bytes
RATIO = 100  # of the bytes of a larger array to those that it has in the file
NAMED = 10  # arrays of a file that an error names


class OwnFile(Source):
    own_file = True

    def read(self, name: str, root: Path) -> Dataset:
        with _opened(root) as content:
            read = _taken(content)
            unread = tuple(sorted({*content.files} - KEYS))[:NAMED]
        if problem := _clients_problem(read):
            raise UserError(f"{root}: {problem}")
        client = "client" if "client" in read else ""
        dataset = made(
            root,
            read,
            unread=unread,
            owners=number_owners(read[client]) if client else None,
            description=DataDescription(("x",), "y", client),
        )
        notes = list(dataset.notes)
        if unread:
            names = ", ".join(map(repr, unread))
            notes.append(f"{root}: the arrays {names} are not read; x, y, client are")
        return replace(dataset, notes=tuple(notes))


def made(path: Path, arrays: dict[str, np.ndarray], **more: Any) -> Dataset:
    """Make the data set of the ``arrays`` x, y and perhaps ``classes`` from ``path``.

    more: further fields of it. Raises UserError where the arrays cannot be used.
    """
    if problem := _labels_problem(arrays) or _samples_problem(arrays["x"]):
        raise UserError(f"{path}: {problem}")
    x, y = arrays["x"], torch.from_numpy(arrays["y"].astype(np.int64))
    classes = int(arrays.get("classes", y.max() + 1))
    notes = () if "classes" in arrays else gaps(path, y)
    if x.dtype == np.uint8 or x.dtype.kind == "f":
        test, clients = more.get("official_test", 0), more.get("owners")
        notes += _ranges.describe(path, x, test, clients)
    data = partial(Dataset, path.stem, y=y, classes=classes, notes=notes, **more)
    if x.dtype == np.uint8:
        return data(x=torch.from_numpy(x))
    if x.dtype.kind == "f":
        for column in range(x.shape[1] if x.ndim == 2 else 0):
            refuse_indistinct(f"{path}: column {column} of x", x[:, column])
        return data(x=torch.from_numpy(x.astype(np.float32)), **AS_THEY_ARE)
    return data(x=torch.from_numpy(x.astype(np.int64)), vocabulary=int(x.max()) + 1)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays ``x``, ``y`` and, if they are there, ``classes`` and
    ``client``, of a .npz file.

    Raises UserError for anything else.
    """
    with _opened(path) as content:
        return _taken(content)


def _taken(content: NpzFile) -> dict[str, np.ndarray]:
    return {key: content[key] for key in sorted(KEYS & {*content.files})}


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    """Open a .npz file with x and y; a failure to read inside the block raises
    UserError, too.
    """
    try:
        with user_files.opened(path) as file:
            refuse_bombs(file)
            with np.load(file, allow_pickle=False) as content:
                if missing := " and ".join(
                    f"'{key}'" for key in ("x", "y") if key not in content
                ):
                    raise UserError(
                        f"{path}: must hold the arrays 'x' and 'y'; it lacks {missing}, it has "
                        f"{', '.join(map(repr, content.files[:NAMED])) or 'none'}"
                    )
                yield content
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (
        Exception
    ) as error:  # numpy and zipfile raise many kinds for what is not a whole .npz
        if path.suffix.lower() == ".csv":
            raise UserError(
                f"{path}: is a CSV file, which data.dataset = 'csv' reads; its column of "
                "classes is 'label', or what data.label names"
            ) from None
        raise UserError(
            f"{path}: cannot be read as a .npz file without pickled objects "
            f"({atomic.reason(error)})"
        ) from None


def refuse_bombs(file: BinaryIO) -> None:
    """Raise ValueError for an array that would fill the memory from next to nothing, and
    for two arrays of one name.

    The sizes that a file declares can be trusted, because no more than that is ever
    unpacked.
    """
    entries = zipfile.ZipFile(file).infolist()
    names = Counter(entry.filename.removesuffix(".npy") for entry in entries)
    name, count = names.most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise ValueError(f"the array '{name}' stands {count} times; keep one")
    for entry in entries:
        if entry.file_size > max(UNPACKED, RATIO * entry.compress_size):
            sizes = f"from {entry.compress_size:,} to {entry.file_size:,} bytes"
            raise ValueError(
                f"'{entry.filename}' would grow {sizes}, at most {RATIO} times are allowed: "
                "save it with numpy.savez, uncompressed"
            )
    file.seek(0)


def _labels_problem(arrays: dict[str, np.ndarray]) -> str:
    """Return the mistake in the class numbers or the shapes; "" without one."""
    x, y = arrays["x"], arrays["y"]
    classes = arrays.get("classes", np.array(MOST_CLASSES))
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or not len(y) or 0 in x.shape:
        return f"x has the shape {x.shape} and y {y.shape}; they must be [n, …] and [n], n at least 1"
    if y.dtype.kind not in "iu" or y.min() < 0:
        first = f" from {y.min()}" if y.dtype.kind in "iu" else ""
        return f"y must hold class numbers 0, 1, …; it is {y.dtype}{first}"
    if (
        classes.ndim
        or classes.dtype.kind not in "iu"
        or not 0 < classes <= MOST_CLASSES
    ):
        return f"classes must be one integer from 1 to {MOST_CLASSES:,}; it is {classes!r:.60}"
    if int(y.max()) >= int(classes):
        bound = "classes is" if "classes" in arrays else "it must be below"
        return f"y holds the class number {y.max():,}; {bound} {int(classes):,}"
    return ""


def _clients_problem(arrays: dict[str, np.ndarray]) -> str:
    """Return the mistake in the owners of samples; "" without one."""
    clients, samples = arrays.get("client"), len(arrays["x"]) if arrays["x"].ndim else 0
    if clients is None or (clients.shape == (samples,) and clients.dtype.kind in "iuU"):
        return ""
    return (
        f"client must be [{samples}], the number or name of each sample's owner; it is {clients.dtype} "
        f"{list(clients.shape)}"
    )


def _samples_problem(x: np.ndarray) -> str:
    """Return the mistake in the samples; "" without one."""
    if x.dtype.kind not in "fiu":
        return f"x must hold numbers; it is {x.dtype}"
    if x.dtype.kind == "f":
        place = values.describe_nonfinite(x)
        if not place:
            return ""
        bounds = "which are those beyond 3.4e+38"
        return f"x{place}; x must not hold NaN or infinities, {bounds}"
    if x.min() < 0:
        return "x holds negative token ids"
    if x.max() >= MOST_TOKENS:
        return f"x holds the token id {x.max():,}; it must be below {MOST_TOKENS:,}"
    return ""


def gaps(path: Path, y: torch.Tensor, classes: int | None = None) -> tuple[str, ...]:
    """Return a note where class numbers do not occur, else nothing.

    classes: how many there are; without it one more than the greatest number.
    """
    classes = classes or int(y.max()) + 1
    missing = (y.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if not missing:
        return ()
    told = wording.list_first([str(number) for number in missing])
    return (
        f"{path}: no sample has the class {told} of 0 … {classes - 1}; models get an output for it "
        "all the same (number them 0, 1, … without gaps; an npz file may say how many there "
        "are in the array 'classes')",
    )


plugin = OwnFile()
