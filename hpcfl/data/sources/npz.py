"""Your own arrays in .npz files: one file, or a folder for each client.

uint8 samples are images [n, channels, height, width] or values 0 … 255, scaled as the
built-in images; floats are taken as they are; other integers are token ids [n,
positions], 0 for padding. An integer ``classes`` in the file says how many classes
there are, for data in which the last ones do not occur; without it there is one more
than the greatest class number. An array ``client`` [n] of numbers or names says whose
each sample is, for ``partition.scheme = "by-client"``.

A client's folder holds ``data.npz``, or ``train.npz`` and ``test.npz``, all of them as
for ``npz`` but without ``client``. The clients' order is that of their names.
"""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from hpcfl.data import checks
from hpcfl.data.datasets import (
    AS_THEY_ARE,
    DataDescription,
    Dataset,
    Owners,
    number_owners,
)
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

MOST_CLASSES, MOST_TOKENS, MOST_CLIENTS = 100_000, 10_000_000, 100_000
KEYS = ("x", "y", "classes", "client")  # arrays that are read
UNPACKED = 1 << 30  # bytes
RATIO = 100  # of the bytes of a larger array to those that it has in the file
NAMED = 10  # arrays of a file that are named
FACTOR = 100  # pixels of 0 … 255 beside pixels of 0 … 1 differ by 255
# The files of a client's folder: all samples in one file, or test samples apart.
WHOLE = ["data.npz"]
APART = ["train.npz", "test.npz"]
Arrays = dict[str, np.ndarray]


class OwnFile(Source):
    """Your own data: a .npz file (``data.file``) with samples ``x`` [n, …] and class
    numbers ``y`` [n], 0, 1, …
    """

    own_file = True

    def read(self, name: str, root: Path) -> Dataset:
        arrays, unread = read_arrays(root)
        client = "client" if "client" in arrays else ""
        dataset = make_dataset(
            root,
            arrays,
            unread=unread,
            description=DataDescription(("x",), "y", client),
        )
        if not unread:
            return dataset
        names = ", ".join(map(repr, unread))
        note = f"{root}: the arrays {names} are not read; x, y, client are"
        return replace(dataset, notes=(*dataset.notes, note))


class ClientFolders(Source):
    """Your own clients: a folder (``data.file``) with a folder for each, named like the
    client, with .npz files.
    """

    own_file = True
    looked_for = ("CLIENT/data.npz", "or CLIENT/train.npz and CLIENT/test.npz")

    def read(self, name: str, root: Path) -> Dataset:
        folders = _list_folders(root)
        files = APART if (folders[0] / APART[0]).exists() else WHOLE
        for folder in folders:
            _refuse_other_files(folder, files)
        # The training samples of all clients come first, then their test samples.
        paths = [folder / file for file in files for folder in folders]
        parts = {}
        for path in paths:
            arrays, _ = read_arrays(path)
            if "client" in arrays:
                raise UserError(
                    f"{path}: has an array 'client', but its folder names the client; leave it "
                    "out, or read one file by data.dataset = 'npz'"
                )
            parts[path] = arrays
        names = [folder.name for folder in folders]
        return join_clients(root, parts, names, "the name of the folder")


def read_arrays(path: Path) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays KEYS of a .npz file, as far as they are there, and names of
    others. Raises UserError for anything else.
    """
    if path.suffix.lower() == ".csv":
        raise UserError(
            f"{path}: is a CSV file, which data.dataset = 'csv' reads; its column of "
            "classes is 'label', or what data.label names"
        )
    kind = "a .npz file without pickled objects"
    with (
        untrusted_files.refuse_unreadable(path, kind),
        untrusted_files.open_user_file(path) as file,
    ):
        refuse_bombs(file)
        with np.load(file, allow_pickle=False) as content:
            names = content.files
            if "x" not in names or "y" not in names:
                has = ", ".join(map(repr, names[:NAMED])) or "none"
                raise UserError(
                    f"{path}: must hold the arrays 'x' and 'y'; it has {has}"
                )
            arrays = {key: content[key] for key in KEYS if key in names}
    return arrays, tuple(sorted(set(names) - set(KEYS))[:NAMED])


def refuse_bombs(file: BinaryIO) -> None:
    """Raise ValueError for an array that would fill the memory from next to nothing, and
    for two arrays of one name.

    The sizes that a file declares can be trusted, because no more than that is ever
    unpacked.
    """
    entries = zipfile.ZipFile(file).infolist()
    names = [entry.filename.removesuffix(".npy") for entry in entries]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the array '{repeated}' stands twice; keep one")
    for entry in entries:
        if entry.file_size > max(UNPACKED, RATIO * entry.compress_size):
            raise ValueError(
                f"'{entry.filename}' would grow from {entry.compress_size:,} to "
                f"{entry.file_size:,} bytes, at most {RATIO} times are allowed: save it with "
                "numpy.savez, uncompressed"
            )
    file.seek(0)


def make_dataset(path: Path, arrays: Arrays, **more: Any) -> Dataset:
    """Make the data set of the ``arrays`` x, y and perhaps ``classes`` and ``client`` from
    ``path``.

    more: further fields of it. Raises UserError where the arrays cannot be used.
    """
    if mistake := _describe_mistake(arrays):
        raise UserError(f"{path}: {mistake}")
    x, y = arrays["x"], torch.from_numpy(arrays["y"].astype(np.int64))
    if "client" in arrays:
        more["owners"] = number_owners(arrays["client"])
    classes = int(arrays.get("classes", y.max() + 1))
    notes = () if "classes" in arrays else describe_gaps(path, y)
    if x.dtype != np.uint8 and x.dtype.kind in "iu":
        more |= {"vocabulary": int(x.max()) + 1}
        x = x.astype(np.int64)
    else:
        notes += _describe_scales(path, x, **more)
    if x.dtype.kind == "f":
        for column in range(x.shape[1] if x.ndim == 2 else 0):
            checks.refuse_indistinct(f"{path}: column {column} of x", x[:, column])
        more |= AS_THEY_ARE
        x = x.astype(np.float32)
    return Dataset(path.stem, torch.from_numpy(x), y, classes, notes=notes, **more)


def _describe_mistake(arrays: Arrays) -> str:
    """Return the first mistake in arrays; "" without one."""
    x, y = arrays["x"], arrays["y"]
    client = arrays.get("client")
    classes = arrays.get("classes", np.array(MOST_CLASSES))
    integers = "iu"  # kinds of NumPy's types
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or not len(y) or 0 in x.shape:
        return f"x has the shape {x.shape} and y {y.shape}; they must be [n, …] and [n], n at least 1"
    if y.dtype.kind not in integers or y.min() < 0:
        return f"y must hold class numbers 0, 1, …; it is {y.dtype} from {y.min()}"
    if client is not None and (
        client.shape != y.shape or client.dtype.kind not in f"{integers}U"
    ):
        return (
            f"client must be [{len(y)}], the number or name of each sample's owner; it is "
            f"{client.dtype} {list(client.shape)}"
        )
    is_number = classes.ndim == 0 and classes.dtype.kind in integers
    if not is_number or not 0 < classes <= MOST_CLASSES:
        return f"classes must be one integer from 1 to {MOST_CLASSES:,}; it is {classes!r:.60}"
    if y.max() >= classes:
        return (
            f"y holds the class number {y.max():,}; it must be below {int(classes):,}"
        )
    if x.dtype.kind not in f"f{integers}":
        return f"x must hold numbers; it is {x.dtype}"
    if place := untrusted_files.describe_nonfinite(x):
        return f"x{place}; x must hold neither NaN nor numbers beyond 3.4e+38"
    if x.dtype.kind in integers and x.min() < 0:
        return "x holds negative token ids"
    if x.dtype.kind in integers and x.max() >= MOST_TOKENS:
        return f"x holds the token id {x.max():,}; it must be below {MOST_TOKENS:,}"
    return ""


def describe_gaps(
    path: Path, y: torch.Tensor, classes: int | None = None
) -> tuple[str, ...]:
    """Return a note where class numbers do not occur, else nothing.

    classes: how many there are; without it one more than the greatest number.
    """
    classes = classes or int(y.max()) + 1
    missing = (y.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if not missing:
        return ()
    listed = wording.list_first([str(number) for number in missing])
    return (
        f"{path}: no sample has the class {listed} of 0 … {classes - 1}; models get an output for "
        "it all the same (number them 0, 1, … without gaps; an npz file may say how many there "
        "are in the array 'classes')",
    )


def _describe_scales(
    path: Path,
    x: np.ndarray,
    official_test: int = 0,
    owners: Owners | None = None,
    **unused: Any,
) -> tuple[str, ...]:
    """Return a note for training and test samples, and one for clients, whose typical
    largest values differ by more than FACTOR.
    """
    from scipy import ndimage  # takes long to import and is needed here only

    flat = x.reshape(len(x), -1)
    smallest = flat.min(axis=1).astype(float)
    largest = np.maximum(flat.max(axis=1), -smallest)
    is_test = np.arange(len(x)) >= len(x) - official_test
    groupings = [(is_test.astype(int), ["training samples", "test samples"])]
    if owners is not None:
        groupings.append((owners.of, [f"client '{one}'" for one in owners.names]))
    notes = []
    for group, names in groupings:
        present = np.unique(group)
        medians = np.array(ndimage.median(largest, group, present))
        # where most samples are zeros, their scale is not known
        low, high = np.where(medians, medians, np.inf).argmin(), medians.argmax()
        if medians[high] > FACTOR * medians[low] > 0:
            notes.append(
                f"{path}: values reach {medians[high]:g} in {names[present[high]]}, but "
                f"{medians[low]:g} in {names[present[low]]}; are both scaled alike?"
            )
    return tuple(notes)


def _list_folders(root: Path) -> list[Path]:
    """List the clients' folders in the order of names. Raises UserError where there are
    none.
    """
    folders = []
    with untrusted_files.refuse_unreadable(root, "a folder of clients"):
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                folders.append(path)
            elif path.suffix == ".npz":
                raise UserError(f"{path}: is in no client's folder")
    if not 0 < len(folders) <= MOST_CLIENTS:
        raise UserError(
            f"{root}: must hold a folder for each client, at most {MOST_CLIENTS:,}; "
            f"it holds {len(folders):,}"
        )
    return folders


def _refuse_other_files(folder: Path, files: list[str]) -> None:
    """Raise UserError where a client's folder holds other .npz files than ``files``."""
    found = [path.name for path in folder.glob("*.npz")]
    if sorted(found) != sorted(files):
        raise UserError(
            f"{folder}: holds {wording.list_names(sorted(found)) or 'no .npz file'}; all clients "
            f"must have {' and '.join(files)} alone (folders of images are read by "
            "data.dataset = 'image-folder')"
        )


def join_clients(
    root: Path,
    parts: dict[Path, Arrays],
    names: list[str],
    named_by: str,
    *,
    classes: int | None = None,
) -> Dataset:
    """Make the data set of all clients' files.

    Raises UserError where samples of two files cannot lie in one array, or one holds a
    not-a-number or infinity.

    Args:
        root: The folder of all.
        parts: By file what it holds: of each client, called ``names``, the training
            samples, then of each the test samples, if they are apart.
        named_by: What names a client.
        classes: How many there are; without it the files say it, or the labels.
    """
    first, *_ = parts
    for path, arrays in parts.items():
        x, y = arrays["x"], arrays["y"]
        if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
            raise UserError(
                f"{path}: x has the shape {x.shape} and y {y.shape}; they must be [n, …] and [n]"
            )
        form, other = _describe_form(arrays), _describe_form(parts[first])
        if form != other:
            raise UserError(
                f"{path}: {form}, but {other} in {first}; all clients must have one type and "
                "shape"
            )
        if place := untrusted_files.describe_nonfinite(x):
            raise UserError(f"{path}: x{place}")
    whole = {
        key: np.concatenate([arrays[key] for arrays in parts.values()])
        for key in ("x", "y")
    }
    stated = {
        int(arrays["classes"]) for arrays in parts.values() if "classes" in arrays
    }
    if classes is not None:
        stated = {classes}
    if len(stated) > 1:
        raise UserError(
            f"{root}: files state {sorted(stated)} as the number of classes"
        )
    if stated:
        whole["classes"] = np.array(stated.pop())
    lengths = [len(arrays["y"]) for arrays in parts.values()]
    clients = np.arange(len(parts)) % len(names)
    return make_dataset(
        root,
        whole,
        official_test=sum(lengths[len(names) :]),
        owners=Owners(tuple(names), np.repeat(clients, lengths)),
        description=DataDescription(features=("x",), label="y", client=named_by),
    )


def _describe_form(arrays: Arrays) -> str:
    """Return the types and shapes of samples and labels, for a message."""
    x, y = arrays["x"], arrays["y"]
    sizes = ", ".join(map(str, ("n", *x.shape[1:])))
    return f"x is {x.dtype} [{sizes}] and y {y.dtype}"


plugins = {"npz": OwnFile(), "npz-folders": ClientFolders()}
