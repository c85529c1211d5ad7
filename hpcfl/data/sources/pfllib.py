"""Data sets of PFLlib (Zhang et al., arXiv 2312.04992): a folder (``data.file``)
written by its ``generate_NAME.py``.

It holds ``train/K.npz`` and ``test/K.npz`` for each client K, from 0, and usually
``config.json`` (heterogeneity.md D12). With ``partition.scheme = "by-client"`` clients
have PFLlib's numbers, samples, and split into training and test samples. Values are
used unchanged, because PFLlib normalises before writing. Integers [n, positions], and
lists of tokens with their lengths, are token ids.

Files are pickles. Only arrays, lists and numbers are read from them; no code in them is
executed.
"""

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from typing_extensions import TypedDict

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources import npz, pickled
from hpcfl.data.sources.base import Source
from hpcfl.data.sources.npz import MOST_CLIENTS, Arrays
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

PARTS = ("train", "test")
CONFIG = "config.json"
MEMBER = "data.npy"  # the only array in a client's file
MOST_BYTES = 1 << 31  # limit for an uncompressed client's part

SIZES: Final = "Size of samples for labels in clients"

# A client's pairs of a class number and a number of samples.
Counts = list[Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]]

# Keys of ``config.json`` that are read. HAR has only these; Shakespeare has no file.
Config = TypedDict(
    "Config",
    {
        "num_clients": PositiveInt,
        "num_classes": NotRequired[PositiveInt],  # older generators do not write it
        "Size of samples for labels in clients": NotRequired[list[Counts] | None],
    },
)


class PFLlib(Source):
    own_file = True
    looked_for = ("config.json", "train/K.npz", "test/K.npz")

    def read(self, name: str, root: Path) -> Dataset:
        config = _read_config(root)
        clients = _count_clients(root, config)
        paths = []
        for part in PARTS:
            paths += [root / part / f"{client}.npz" for client in range(clients)]
        parts = {path: _read_arrays(path) for path in paths}
        classes = None if config is None else config.get("num_classes")
        names = list(map(str, range(clients)))
        named_by = "the number in the file's name"
        dataset = npz.join_clients(root, parts, names, named_by, classes=classes)
        if config is None:
            return dataset
        _refuse_other_sizes(root, config.get(SIZES), list(parts.values()))
        found = len(dataset.y.unique())
        if classes in (None, found):
            return dataset
        note = (
            f"{root / CONFIG}: num_classes = {classes}, but the files have samples of {found} "
            "classes"
        )
        return replace(dataset, notes=(*dataset.notes, note))


def _read_config(root: Path) -> Config | None:
    """Return the content of ``config.json``, or None without this file. Raises
    UserError.
    """
    path = root / CONFIG
    if not path.exists():
        return None
    return untrusted_files.read_user_json(path, Config, "PFLlib's")


def _count_clients(root: Path, config: Config | None) -> int:
    """Return the number of clients, numbered 0 … n − 1, with a file in both parts.

    Raises UserError if a file is missing, or the folder is not PFLlib's.
    """
    by_part = {part: _list_numbers(root / part) for part in PARTS}
    highest = max(max(numbers, default=-1) for numbers in by_part.values())
    clients = config["num_clients"] if config is not None else highest + 1
    if not 0 < clients <= MOST_CLIENTS:
        raise UserError(
            f"{root}: must hold PFLlib's train/K.npz and test/K.npz for at most "
            f"{MOST_CLIENTS:,} clients; it has {clients:,}"
        )
    if highest >= clients:
        raise UserError(
            f"{root}: {CONFIG} has num_clients = {clients}, but the folder has a file of "
            f"client {highest}"
        )
    for part, numbers in by_part.items():
        missing = set(range(clients)) - numbers
        if missing:
            raise UserError(
                f"{root / part / f'{min(missing)}.npz'}: no such file; {clients} clients "
                f"have {part}/0.npz to {part}/{clients - 1}.npz"
            )
    return clients


def _list_numbers(folder: Path) -> set[int]:
    """Return the numbers of the clients with a file in a folder. Raises UserError."""
    numbers = set()
    for path in folder.glob("*.npz"):
        if not re.fullmatch(r"0|[1-9]\d{0,8}", path.stem, re.ASCII):
            raise UserError(f"{path}: must be named K.npz, with a client's number K")
        numbers.add(int(path.stem))
    return numbers


def _read_arrays(path: Path) -> Arrays:
    """Return a client's samples of one part, x [n, …] and y int64 [n].

    Raises UserError.
    """
    with untrusted_files.refuse_unreadable(path, "a client of PFLlib's"):
        content = _read_pickle(path)
        samples = pickled.unpickle(content)
        if not isinstance(samples, np.ndarray) or samples.shape != ():
            raise ValueError("its array must have no dimensions")
        samples = samples.item()
        if not isinstance(samples, dict) or not {"x", "y"} <= set(samples):
            raise ValueError("its array must hold a dictionary with 'x' and 'y'")
        x = _convert_samples(samples["x"], most=len(content))
        y = convert_numbers(samples["y"], most=len(content))
        if y.dtype.kind not in "iu":
            raise ValueError(f"y must hold integers; it is {y.dtype}")
        return {"x": x, "y": y.astype(np.int64)}


def _read_pickle(path: Path) -> bytes:
    """Return the pickle in a .npz file with one array of objects, without dimensions.

    Raises ValueError and errors of the file format's readers.
    """
    with untrusted_files.open_user_file(path) as file:
        npz.refuse_bombs(file)
        with zipfile.ZipFile(file) as archive:
            if archive.namelist() != [MEMBER]:
                raise ValueError(f"it must hold only {MEMBER}")
            if archive.getinfo(MEMBER).file_size > MOST_BYTES:
                raise ValueError(f"{MEMBER} is longer than {MOST_BYTES:,} bytes")
            content = archive.open(MEMBER)
            version = np.lib.format.read_magic(content)
            if version != (1, 0):
                raise ValueError(
                    f"version {version} of NumPy's format is not supported"
                )
            shape, _, dtype = np.lib.format.read_array_header_1_0(content)
            if shape != () or dtype.kind != "O":
                raise ValueError(
                    f"{MEMBER} must hold one object; it is {dtype} {list(shape)}"
                )
            return content.read()


def _convert_samples(x: Any, most: int) -> np.ndarray:
    """Convert samples for ``npz.make_dataset``.

    Args:
        x: an array, a list of arrays (Omniglot), or lists of tokens with their lengths.
        most: number of bytes read, an upper limit for the result.

    Returns:
        Token ids, int64 [n, positions], or other values as float32; integer images are
        values.

    Raises:
        ValueError: The samples have another format.
    """
    if isinstance(x, list) and all(isinstance(sample, np.ndarray) for sample in x):
        if sum(sample.nbytes for sample in x) > most:
            raise ValueError("its arrays have more bytes than the file")
        x = np.stack(x)
    if isinstance(x, list) or x.dtype == object:
        return _convert_texts(x, most)
    values = convert_numbers(x, most)
    is_tokens = values.dtype.kind == "i" and values.ndim == 2
    return values.astype(np.int64 if is_tokens else np.float32)


def _convert_texts(rows: Any, most: int) -> np.ndarray:
    """Return the token ids, int64 [n, positions], in pairs of tokens and length.

    Raises ValueError.
    """
    texts = []
    for tokens, length in rows:
        if not isinstance(tokens, list) or not 0 <= length <= len(tokens):
            raise ValueError("its texts must be lists of tokens with their lengths")
        if len(tokens) * len(rows) > most:  # a pickle may repeat one list
            raise ValueError("its texts have more tokens than the file has bytes")
        texts.append(tokens)
    array: np.ndarray = np.array(texts)  # raises ValueError for unequal lengths
    if array.dtype.kind != "i" or array.ndim != 2:
        raise ValueError("its texts must hold only integers")
    return array.astype(np.int64)


def convert_numbers(values: Any, most: int) -> np.ndarray:
    """Convert an array or list of numbers to an array.

    Args:
        values: the numbers.
        most: number of bytes read, an upper limit for a pickled array.

    Raises:
        ValueError: Values are not numbers, or an array declares more than ``most``
            bytes.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"it must hold numbers; it holds {array.dtype}")
    if isinstance(values, np.ndarray) and array.nbytes > most:
        raise ValueError(
            f"an array declares {array.nbytes:,} bytes, but the file has {most:,}"
        )
    return array


def _refuse_other_sizes(
    root: Path, sizes: list[Counts] | None, parts: list[Arrays]
) -> None:
    """Raise UserError for the first client whose samples contradict ``config.json``.

    Args:
        root: folder of the data.
        sizes: entries of ``config.json``, or None.
        parts: training samples of all clients, then test samples of all clients.
    """
    clients = len(parts) // len(PARTS)
    if sizes is None:
        return
    if len(sizes) != clients:
        raise UserError(
            f"{root / CONFIG}: has sizes for {len(sizes)} clients instead of {clients}"
        )
    for client, stated in enumerate(sizes):
        labels = [parts[client]["y"], parts[clients + client]["y"]]
        classes, counts = np.unique(np.concatenate(labels), return_counts=True)
        held = np.stack([classes, counts], axis=1).tolist()
        expected = sorted(pair for pair in stated if pair[1])
        if held != expected:
            raise UserError(
                f"{root}: client {client} has {counts.sum():,} samples, [class, number] {held}; "
                f"{CONFIG} states {expected}"
            )


plugin = PFLlib()
