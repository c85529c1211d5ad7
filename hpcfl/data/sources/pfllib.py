"""PFLlib's clients (Zhang et al., arXiv 2312.04992): a folder (``data.file``) that its
``generate_NAME.py`` wrote, read as it is.

It holds ``train/K.npz`` and ``test/K.npz`` for each client K, from 0, and mostly
``config.json`` (heterogeneity.md D12). With ``partition.scheme = "by-client"`` clients
have PFLlib's own numbers and samples, its split into training and test included. Values
are taken as they are, because PFLlib normalises before it writes. Integers [n,
positions], and its lists of tokens with their lengths, are token ids.

A file is a pickle, of which only arrays, lists and numbers are read: nothing in it is
run.
"""

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from typing_extensions import TypedDict

from hpcfl.data.datasets import DataDescription, Dataset, Owners
from hpcfl.data.sources import _pickled, npz, npz_folders
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, untrusted_files, user_files
from hpcfl.files.atomic import Damaged

PARTS = ("train", "test")
CONFIG = "config.json"
MEMBER = "data.npy"  # the one array in a client's file
MOST_CLIENTS = 100_000
MOST_BYTES = 1 << 31  # of one client's part, unpacked
CONFIG_BYTES = 1 << 26

SIZES: Final = "Size of samples for labels in clients"

# Pairs of a class number and how many samples of it a client has.
Counts = list[Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]]
Arrays = dict[str, np.ndarray]

# The keys of ``config.json`` that are read; HAR's has these keys alone, Shakespeare has no file.
Config = TypedDict(
    "Config",
    {
        "num_clients": PositiveInt,
        "num_classes": PositiveInt,
        "Size of samples for labels in clients": NotRequired[list[Counts] | None],
    },
)


class PFLlib(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["config.json", "train/K.npz", "test/K.npz"]

    def read(self, name: str, root: Path) -> Dataset:
        config = _config(root)
        clients = _clients(root, config)
        paths = []
        for part in PARTS:
            paths += [root / part / f"{client}.npz" for client in range(clients)]
        parts = [_arrays(path) for path in paths]
        joined = npz_folders.joined(paths, parts)
        notes: tuple[str, ...] = ()
        if config is not None:
            notes = _describe_classes(root, config["num_classes"], joined["y"])
            joined["classes"] = np.array(config["num_classes"])
            _refuse_other_sizes(root, config.get(SIZES), parts)
        lengths = [len(arrays["y"]) for arrays in parts]
        of = np.repeat([*range(clients), *range(clients)], lengths)
        dataset = npz.made(
            root,
            joined,
            official_test=sum(lengths[clients:]),
            owners=Owners(tuple(map(str, range(clients))), of),
            description=DataDescription(
                features=("x",), label="y", client="the number in the file's name"
            ),
        )
        return replace(dataset, notes=(*dataset.notes, *notes))


def _describe_classes(root: Path, stated: int, y: np.ndarray) -> tuple[str, ...]:
    """Return a note where ``config.json`` states more classes than occur. Raises
    UserError where it states fewer.
    """
    if int(y.max()) >= stated:
        raise UserError(
            f"{root / CONFIG}: says num_classes = {stated}, but there are samples of class "
            f"{int(y.max())}"
        )
    found = len(np.unique(y))
    if found == stated:
        return ()
    return (
        f"{root / CONFIG}: says num_classes = {stated}, the files have samples of {found} "
        "classes",
    )


def _config(root: Path) -> Config | None:
    """Read ``config.json``; None where there is none. Raises UserError."""
    path = root / CONFIG
    try:
        table = untrusted_files.parsed(user_files.read_bytes(path, CONFIG_BYTES))
        return untrusted_files.checked(table, Config)
    except FileNotFoundError:
        return None
    except (OSError, Damaged) as error:
        raise UserError(
            f"{path}: cannot be read as PFLlib's ({atomic.reason(error)})"
        ) from None


def _clients(root: Path, config: Config | None) -> int:
    """Return the number of clients: those with the numbers 0 … n − 1, each with a file
    in both parts.

    Raises UserError where one is missing, or the folder is none of PFLlib's.
    """
    by_part = {part: _found(root / part) for part in PARTS}
    highest = max(max(numbers, default=-1) for numbers in by_part.values())
    clients = config["num_clients"] if config is not None else highest + 1
    if not 0 < clients <= MOST_CLIENTS:
        raise UserError(
            f"{root}: must hold PFLlib's train/K.npz and test/K.npz for at most "
            f"{MOST_CLIENTS:,} clients; it has {clients:,}"
        )
    if highest >= clients:
        raise UserError(
            f"{root}: {CONFIG} says num_clients = {clients}, but there is a file of "
            f"client {highest}"
        )
    for part, numbers in by_part.items():
        missing = sorted(set(range(clients)) - numbers)
        if missing:
            raise UserError(
                f"{root / part / f'{missing[0]}.npz'}: no such file; {clients} clients "
                f"have {part}/0.npz to {part}/{clients - 1}.npz"
            )
    return clients


def _found(folder: Path) -> set[int]:
    """Return the numbers of the clients that have a file in a folder. Raises UserError."""
    numbers = set()
    try:
        for path in folder.iterdir():
            if re.fullmatch(r"(0|[1-9]\d{0,8})\.npz", path.name, re.ASCII):
                numbers.add(int(path.stem))
            elif path.suffix == ".npz":
                raise UserError(f"{path}: must be called K.npz, of a client's number K")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be read as a folder of PFLlib's clients "
            f"({atomic.reason(error)})"
        ) from None
    return numbers


def _arrays(path: Path) -> Arrays:
    """Read a client's samples of one part, x [n, …] and y int64 [n]. Raises UserError."""
    try:
        pickled = _pickle_in(path)
        samples = _pickled.loaded(pickled)
        if not isinstance(samples, np.ndarray) or samples.shape != ():
            raise ValueError("it holds no array without dimensions")
        samples = samples.item()
        if not isinstance(samples, dict) or not {"x", "y"} <= set(samples):
            raise ValueError("it holds no dictionary of 'x' and 'y'")
        x = _samples(samples["x"], most=len(pickled))
        y = _numbers(samples["y"], most=len(pickled))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # a pickle, a zip file and NumPy can fail in any way
        raise UserError(
            f"{path}: cannot be read as a client of PFLlib's ({atomic.reason(error)})"
        ) from None
    heartbeat.beat()
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or y.dtype.kind not in "iu":
        raise UserError(
            f"{path}: x is {x.dtype} {list(x.shape)} and y {y.dtype} {list(y.shape)}; "
            "they must be [n, …] and integers [n]"
        )
    return {"x": x, "y": y.astype(np.int64)}


def _pickle_in(path: Path) -> bytes:
    """Read the pickle in a .npz file of one array of objects without dimensions. Raises
    many kinds of exceptions.
    """
    with user_files.opened(path) as file:
        npz.refuse_bombs(file)
        with zipfile.ZipFile(file) as archive:
            if archive.namelist() != [MEMBER]:
                raise ValueError(f"it must hold {MEMBER} alone")
            if archive.getinfo(MEMBER).file_size > MOST_BYTES:
                raise ValueError(f"{MEMBER} is longer than {MOST_BYTES:,} bytes")
            content = archive.open(MEMBER)
            version = np.lib.format.read_magic(content)
            if version != (1, 0):
                raise ValueError(f"version {version} of NumPy's format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(content)
            if shape != () or dtype.kind != "O":
                raise ValueError(f"{MEMBER} is {dtype} {list(shape)}")
            return content.read()


def _samples(x: Any, most: int) -> np.ndarray:
    """Return samples as ``npz.made`` takes them: floats as they are, token ids int64
    [n, positions].

    Integers that are no token ids, of images, are values, as for PFLlib; Omniglot's
    images are a list of arrays. Raises ValueError.
    """
    if isinstance(x, list) and all(isinstance(sample, np.ndarray) for sample in x):
        if sum(sample.nbytes for sample in x) > most:
            raise ValueError("its arrays have more bytes than the file")
        x = np.stack(x)
    if isinstance(x, list) or x.dtype == object:
        return _tokens(x, most)
    values = _numbers(x, most)
    if values.dtype.kind == "i" and values.ndim == 2:
        return values.astype(np.int64)
    return values.astype(np.float32)


def _tokens(rows: Any, most: int) -> np.ndarray:
    """Return the token ids in pairs of a list of them and its length. Raises
    ValueError.
    """
    texts = []
    for row in rows:
        tokens, length = row
        if isinstance(tokens, list) and not 0 <= length <= len(tokens):
            raise ValueError(f"a text of {len(tokens)} tokens states {length}")
        texts.append(tokens)
    lengths = {len(tokens) for tokens in texts if isinstance(tokens, list)}
    if not all(isinstance(tokens, list) for tokens in texts) or len(lengths) != 1:
        raise ValueError("its texts must be lists of as many tokens each")
    if len(texts) * lengths.pop() > most:  # one list may stand in many places
        raise ValueError("its texts have more tokens than the file has bytes")
    tokens = np.array(texts)
    if tokens.dtype.kind != "i" or tokens.ndim != 2:
        raise ValueError("its texts hold something other than integers")
    return tokens.astype(np.int64)


def _numbers(values: Any, most: int) -> np.ndarray:
    """Return an array, or a list, of numbers. Raises ValueError, also where it claims
    to be larger than the ``most`` bytes that were read.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"it holds {array.dtype} where numbers are wanted")
    if isinstance(values, np.ndarray) and array.nbytes > most:
        raise ValueError(f"an array of {array.nbytes:,} bytes from {most:,}")
    return array


def _refuse_other_sizes(
    root: Path, sizes: list[Counts] | None, parts: list[Arrays]
) -> None:
    """Raise UserError for the first client with other samples than ``config.json``
    says.

    parts: the training parts of all clients, then their test parts.
    """
    clients = len(parts) // len(PARTS)
    if sizes is None:
        return
    if len(sizes) != clients:
        raise UserError(
            f"{root / CONFIG}: has the sizes of {len(sizes)} clients, there are {clients}"
        )
    for client, told in enumerate(sizes):
        labels = [parts[client]["y"], parts[clients + client]["y"]]
        classes, counts = np.unique(np.concatenate(labels), return_counts=True)
        held = dict(zip(classes.tolist(), counts.tolist(), strict=True))
        expected = {number: count for number, count in told if count}
        if len({number for number, _ in told}) < len(told):
            raise UserError(
                f"{root / CONFIG}: client {client} has a class twice: {told}"
            )
        if held != expected:
            raise UserError(
                f"{root}: client {client} has {sum(held.values()):,} samples, by class "
                f"{held}; {CONFIG} says {expected}"
            )


plugin = PFLlib()
