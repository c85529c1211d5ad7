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
from typing import Any

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


class Leaf(Source):
    own_file = True

    def read(self, name: str, root: Path) -> Dataset:
        parts = {
            part: [
                one
                for path in _paths(root / part, required=part == "train")
                for one in _users(path)
            ]
            for part in ("train", "test")
        }
        everyone = [*parts["train"], *parts["test"]]
        numbers = {
            user: number
            for number, user in enumerate(dict.fromkeys(user for user, *_ in everyone))
        }
        if len({(x.dtype, x.shape[1:]) for _, x, _ in everyone}) > 1:
            raise UserError(
                f"{root}: all users' samples must be alike, texts or as many numbers each"
            )
        x, y = (
            torch.from_numpy(np.concatenate([one[part] for one in everyone]))
            for part in (1, 2)
        )
        of = np.repeat(
            [numbers[user] for user, *_ in everyone],
            [len(labels) for *_, labels in everyone],
        )
        return Dataset(
            root.name,
            **_scaled(x),
            y=y,
            **_classes(x, y, root),
            official_test=sum(len(labels) for *_, labels in parts["test"]),
            owners=Owners(tuple(numbers), of),
        )


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


def _users(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Each user's name, x [n, …] and y [n] in a file. Raises UserError where it is none
    of LEAF's.
    """
    try:
        content = _Content.model_validate_json(regular.read_bytes(path, MOST_BYTES))
        heartbeat.beat()
        return [
            (user, *_numbered(user, content.user_data[user])) for user in content.users
        ]
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
        if any(len(text) != POSITIONS for text in x) or not all(
            isinstance(one, str) and len(one) == 1 for one in y
        ):
            raise ValueError(
                f"user '{user}': texts must have {POSITIONS} letters, and classes one"
            )
        return _letters(x) + 1, _letters(y)[:, 0] % len(LETTERS)
    if len({len(row) for row in x}) > 1 or not x[0] or isinstance(y[0], str):
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    values, classes = np.array(x), np.array(y, np.int64)
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
    codes = np.array(texts, f"U{len(texts[0])}").view(np.uint32).reshape(len(texts), -1)
    table = np.full(128, -1, np.int64)
    table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    return table[np.where(codes < len(table), codes, 0)]


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
