"""A user's own arrays in .npz files: one file, or a folder for each client.

uint8 samples are images [n, channels, height, width] or values 0 … 255, scaled as the
built-in images. Floats are used unchanged. Other integers are token ids [n, positions],
0 for padding. The integer ``classes`` in a file is the number of classes; without it
the greatest class number is the last. The array ``client`` [n] holds the number or name
of each sample's client, for ``partition.scheme = "by-client"``.

A client's folder holds ``data.npz``, or ``train.npz`` and ``test.npz``, with the same
arrays except ``client``. Clients are sorted by the folder's name.
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
UNPACKED = 1 << 30  # bytes of an array that may have any compression
RATIO = 100  # largest compression ratio of larger arrays
NAMED = 10  # largest number of array names in a message
FACTOR = 100  # pixels 0 … 255 exceed pixels 0 … 1 by a factor of 255
# The files of a client's folder: all samples in one file, or test samples separately.
WHOLE = ["data.npz"]
APART = ["train.npz", "test.npz"]
Arrays = dict[str, np.ndarray]


class OwnFile(Source):
    """A user's own data in a .npz file (``data.file``) with samples ``x`` [n, …] and
    class numbers ``y`` [n], from 0.
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
        note = f"{root}: the arrays {names} are ignored; only x, y, classes and client are read"
        return replace(dataset, notes=(*dataset.notes, note))


class ClientFolders(Source):
    """A user's own clients: a folder (``data.file``) with a folder of .npz files for
    each client, named as the client.
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
                    f"{path}: has an array 'client', but its folder names the client; remove "
                    "the array, or read a single file by data.dataset = 'npz'"
                )
            parts[path] = arrays
        names = [folder.name for folder in folders]
        return join_clients(root, parts, names, "the name of the folder")


def read_arrays(path: Path) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays in a .npz file named in KEYS, and names of ignored arrays.

    Raises UserError if the file is of another format or lacks ``x`` or ``y``.
    """
    if path.suffix.lower() == ".csv":
        raise UserError(
            f"{path}: is a CSV file; set data.dataset = 'csv', and data.label to the column "
            "of classes if its name is not 'label'"
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
    """Raise ValueError for an extreme compression ratio or two arrays with one name.

    The declared sizes can be trusted, because the reader never unpacks more bytes.
    """
    entries = zipfile.ZipFile(file).infolist()
    names = [entry.filename.removesuffix(".npy") for entry in entries]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the array '{repeated}' occurs twice; keep one")
    for entry in entries:
        if entry.file_size > max(UNPACKED, RATIO * entry.compress_size):
            raise ValueError(
                f"'{entry.filename}' would grow from {entry.compress_size:,} to "
                f"{entry.file_size:,} bytes, more than {RATIO} times; save it uncompressed, with "
                "numpy.savez"
            )
    file.seek(0)


def make_dataset(path: Path, arrays: Arrays, **more: Any) -> Dataset:
    """Make a data set of arrays.

    Args:
        path: file of the arrays, for messages; its stem becomes the name.
        arrays: ``x``, ``y`` and optionally ``classes`` and ``client``.
        more: further fields of ``Dataset``.

    Raises:
        UserError: The arrays are invalid.
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
    """Return a description of the first mistake in arrays; "" without one."""
    x, y = arrays["x"], arrays["y"]
    client = arrays.get("client")
    classes = arrays.get("classes", np.array(MOST_CLASSES))
    integers = "iu"  # NumPy's type kinds
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or not len(y) or 0 in x.shape:
        return f"x has the shape {x.shape} and y {y.shape}; they must be [n, …] and [n], n at least 1"
    if y.dtype.kind not in integers or y.min() < 0:
        return (
            f"y must hold class numbers 0, 1, …; it is {y.dtype} from {np.sort(y)[0]}"
        )
    if client is not None and (
        client.shape != y.shape or client.dtype.kind not in f"{integers}U"
    ):
        return (
            f"client must be [{len(y)}], the number or name of each sample's client; it is "
            f"{client.dtype} {list(client.shape)}"
        )
    if mistake := _describe_count(classes):
        return mistake
    if y.max() >= classes:
        return (
            f"y holds the class number {y.max():,}; it must be below {int(classes):,}"
        )
    if x.dtype.kind not in f"f{integers}":
        return f"x must hold numbers; it is {x.dtype}"
    if place := untrusted_files.describe_nonfinite(x):
        return f"x{place}; x must hold finite numbers up to 3.4e+38"
    if x.dtype.kind in integers and x.min() < 0:
        return "x holds negative token ids"
    if x.dtype.kind in integers and x.max() >= MOST_TOKENS:
        return f"x holds the token id {x.max():,}; it must be below {MOST_TOKENS:,}"
    return ""


def _describe_count(classes: np.ndarray) -> str:
    """Return the mistake in the array ``classes`` of a file; "" without one."""
    is_number = classes.ndim == 0 and classes.dtype.kind in "iu"
    if is_number and 0 < classes <= MOST_CLASSES:
        return ""
    return (
        f"classes must be one integer from 1 to {MOST_CLASSES:,}; it is {classes!r:.60}"
    )


def describe_gaps(
    path: Path, y: torch.Tensor, classes: int | None = None
) -> tuple[str, ...]:
    """Return a note if some class numbers have no sample, else nothing.

    Args:
        path: file of the data.
        y: class number of each sample.
        classes: number of classes; None for the greatest class number plus one.
    """
    classes = classes or int(y.max()) + 1
    missing = (y.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if not missing:
        return ()
    listed = wording.list_first([str(number) for number in missing])
    return (
        f"{path}: no sample has the class {listed} of 0 … {classes - 1}, but models have an output "
        "for it; number classes 0, 1, … without gaps (the array 'classes' of an npz file may "
        "state their number)",
    )


def _describe_scales(
    path: Path,
    x: np.ndarray,
    official_test: int = 0,
    owners: Owners | None = None,
    **unused: Any,
) -> tuple[str, ...]:
    """Return notes if typical largest values of samples differ by more than FACTOR.

    Training samples are compared with test samples, and clients with each other.
    """
    from scipy import ndimage  # the import is slow, and only this function needs it

    flat = x.reshape(len(x), -1)
    smallest = flat.min(axis=1).astype(float)
    largest = np.maximum(flat.max(axis=1), -smallest)
    is_test = np.arange(len(x)) >= len(x) - official_test
    groupings = [(is_test.astype(int), ["training samples", "test samples"])]
    if owners is not None:
        groupings.append((owners.numbers, [f"client '{one}'" for one in owners.names]))
    notes = []
    for group, names in groupings:
        present = np.unique(group)
        medians = np.array(ndimage.median(largest, group, present))
        # groups whose median is 0 are skipped, because their scale is unknown
        low, high = np.where(medians, medians, np.inf).argmin(), medians.argmax()
        if medians[high] > FACTOR * medians[low] > 0:
            notes.append(
                f"{path}: values reach {medians[high]:g} in {names[present[high]]}, but "
                f"{medians[low]:g} in {names[present[low]]}; check that both have one scale"
            )
    return tuple(notes)


def _list_folders(root: Path) -> list[Path]:
    """Return the clients' folders, sorted by name. Raises UserError if there are none."""
    folders = []
    with untrusted_files.refuse_unreadable(root, "a folder of clients"):
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                folders.append(path)
            elif path.suffix == ".npz":
                raise UserError(
                    f"{path}: is outside the clients' folders; move it into one"
                )
    if not 0 < len(folders) <= MOST_CLIENTS:
        raise UserError(
            f"{root}: must hold a folder for each client, at most {MOST_CLIENTS:,}; "
            f"it holds {len(folders):,}"
        )
    return folders


def _refuse_other_files(folder: Path, files: list[str]) -> None:
    """Raise UserError if the .npz files of a client's folder differ from ``files``."""
    found = [path.name for path in folder.glob("*.npz")]
    if sorted(found) != sorted(files):
        raise UserError(
            f"{folder}: holds {wording.list_names(sorted(found)) or 'no .npz file'}; all clients "
            f"must have only {' and '.join(files)} (data.dataset = 'image-folder' reads "
            "folders of images)"
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

    Args:
        root: folder of all files.
        parts: arrays of each file: first each client's training samples, in the order of
            ``names``, then each client's test samples, if they are in separate files.
        names: name of each client.
        named_by: source of the clients' names, for a description.
        classes: number of classes; None to take it from the files or the labels.

    Raises:
        UserError: Types or shapes of two files differ, or a file holds NaN, infinity or
            a wrong number of classes.
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
                f"{path}: {form}, but {other} in {first}; all files must have one type and "
                "shape"
            )
        if place := untrusted_files.describe_nonfinite(x):
            raise UserError(f"{path}: x{place}")
        if "classes" in arrays and (mistake := _describe_count(arrays["classes"])):
            raise UserError(f"{path}: {mistake}")
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
            f"{root}: files state different numbers of classes, {sorted(stated)}"
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
    """Return types and shapes of samples and labels, for a message."""
    x, y = arrays["x"], arrays["y"]
    sizes = ", ".join(map(str, ("n", *x.shape[1:])))
    return f"x is {x.dtype} [{sizes}] and y {y.dtype}"


plugins = {"npz": OwnFile(), "npz-folders": ClientFolders()}
