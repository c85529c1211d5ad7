"""LEAF's clients (Caldas et al., arXiv 1812.01097): a folder (``data.file``) with JSON
in train/ and test/.

A file holds ``users``, and for each user ``user_data[user]["x"]`` and ``["y"]``. Lists
of numbers are taken as they are; 784 of them, as of FEMNIST, are an image 1×28×28 of
values 0 … 1, scaled as the built-in images. Texts are Shakespeare's: 80 letters and the
letter after them, numbered by LEAF's alphabet of 80 letters. Such a sample is 80 token
ids, 1 for the first letter, 0 for one that is not in the alphabet; its class is the
next letter's number from 0. ``partition.scheme = "by-client"`` tests users on their
samples in test/.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic
import torch
from pydantic import BaseModel
from torch import Tensor

from hpcfl.data.datasets import Dataset
from hpcfl.data.owners import Owners
from hpcfl.data.sources.base import MOST_BYTES, Source
from hpcfl.data.sources.npz import MOST_CLASSES, gaps
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
POSITIONS = 80  # letters of a sample
IMAGE = (1, 28, 28)
MOST_FILES = 10_000


class _Samples(BaseModel):
    x: list[list[float]] | list[str]
    y: list[int] | list[str]


class _Content(BaseModel):
    users: list[str]
    user_data: dict[str, _Samples]


class _User(NamedTuple):
    """A user's samples in one file: ``x`` [n, …], ``y`` int64 [n]."""

    name: str
    x: np.ndarray
    y: np.ndarray


class Leaf(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["train/*.json", "test/*.json"]

    def read(self, name: str, root: Path) -> Dataset:
        train = _part(root / "train", required=True)
        test = _part(root / "test", required=False)
        users = [*train, *test]  # a user with samples in both parts is there twice
        kinds = {(user.x.dtype, user.x.shape[1:]) for user in users}
        if len(kinds) > 1:
            raise UserError(
                f"{root}: all users' samples must be alike, texts or as many numbers each"
            )
        x = torch.from_numpy(np.concatenate([user.x for user in users]))
        y = torch.from_numpy(np.concatenate([user.y for user in users]))
        numbers: dict[str, int] = {}  # of clients, by name
        for user in users:
            numbers.setdefault(user.name, len(numbers))
        clients = [numbers[user.name] for user in users]
        sizes = [len(user.y) for user in users]
        return Dataset(
            root.name,
            **_scaled(x),
            y=y,
            **_classes(x, y, root),
            official_test=sum(len(user.y) for user in test),
            owners=Owners(tuple(numbers), np.repeat(clients, sizes)),
        )


def _part(folder: Path, required: bool) -> list[_User]:
    """The users of all files in train/ or test/. Raises UserError."""
    users = []
    for path in _paths(folder, required):
        users += _users(path)
    return users


def _paths(folder: Path, required: bool) -> list[Path]:
    """The JSON files in a folder, in the order of names. Raises UserError where
    ``required`` and none.
    """
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MOST_FILES or (required and not paths):
        raise UserError(
            f"{folder}: must hold LEAF's .json files, from 1 to {MOST_FILES:,}; it holds "
            f"{len(paths):,}"
        )
    return paths


def _users(path: Path) -> list[_User]:
    """The users in a file. Raises UserError where it is none of LEAF's."""
    try:
        content = _Content.model_validate_json(regular.read_bytes(path, MOST_BYTES))
        heartbeat.beat()
        users = []
        for name in content.users:
            x, y = _numbered(name, content.user_data[name])
            users.append(_User(name, x, y))
        return users
    except pydantic.ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"]))[:80]
        raise UserError(
            f"{path}: cannot be read as one of LEAF's files ({place}: {first['msg']})"
        ) from None
    except KeyError as error:
        raise UserError(
            f"{path}: 'user_data' has no user {error}, who is among 'users'"
        ) from None
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None


def _numbered(user: str, samples: _Samples) -> tuple[np.ndarray, np.ndarray]:
    """One user's samples and classes as numbers. Raises ValueError."""
    x, y = samples.x, samples.y
    if len(x) != len(y) or not y:
        raise ValueError(f"user '{user}' has {len(x)} samples and {len(y)} classes")
    if isinstance(x[0], str):
        whole_texts = all(len(text) == POSITIONS for text in x)
        letters = all(isinstance(label, str) and len(label) == 1 for label in y)
        if not whole_texts or not letters:
            raise ValueError(
                f"user '{user}': texts must have {POSITIONS} letters, and classes one"
            )
        return _letters(x) + 1, _letters(y)[:, 0] % len(LETTERS)
    if len({len(row) for row in x}) > 1 or not x[0] or isinstance(y[0], str):
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    values = np.array(x)
    classes = np.array(y, np.int64)
    if not np.abs(values).max() <= np.finfo(np.float32).max:
        raise ValueError(f"user '{user}': NaN or infinities")
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise ValueError(
            f"user '{user}': classes must be from 0 to {MOST_CLASSES - 1:,}"
        )
    return values.astype(np.float32), classes


def _letters(texts: list[Any]) -> np.ndarray:
    """The numbers of all letters in the alphabet, int64 [texts, letters]; −1 for
    others.
    """
    strings = np.array(texts, f"U{len(texts[0])}")
    codes = strings.view(np.uint32).reshape(len(texts), -1)
    numbers = np.full(128, -1, np.int64)  # by code, of ASCII
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    # Codes beyond ASCII are read as 0, which is no letter of the alphabet.
    return numbers[np.where(codes < len(numbers), codes, 0)]


def _scaled(x: Tensor) -> dict[str, Any]:
    """The samples as a data set has them, with what normalises them."""
    if x.dtype == torch.int64:
        return {"x": x, "vocabulary": len(LETTERS) + 1}
    if x.shape[1] == IMAGE[1] * IMAGE[2]:
        return {"x": x.view(-1, *IMAGE), "scale": 1.0}
    return {"x": x, "scale": 1.0, "mean": (0.0,), "std": (1.0,)}


def _classes(x: Tensor, y: Tensor, root: Path) -> dict[str, Any]:
    """How many classes there are, with a note where numbers do not occur."""
    if x.dtype == torch.int64:
        return {"classes": len(LETTERS)}
    return {"classes": int(y.max()) + 1, "notes": gaps(root, y)}


plugin = Leaf()
