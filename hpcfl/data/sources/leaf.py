"""LEAF's clients (Caldas et al., arXiv 1812.01097): a folder (``data.file``) with JSON
in train/ and test/.

A file holds ``users``, and for each user ``user_data[user]["x"]`` and ``["y"]``.
``partition.scheme = "by-client"`` tests users on their samples in test/. What ``x``
holds says which of LEAF's data sets it is (heterogeneity.md D6):

* Lists of numbers are taken as they are; 784 of them, as of FEMNIST, are an image
  1×28×28 of values 0 … 1, scaled as the built-in images.
* Texts of 80 letters are Shakespeare's, with the letter after them, numbered by LEAF's
  alphabet of 80 letters. Such a sample is 80 token ids, 1 for the first letter, 0 for
  one that is not in the alphabet; its class is the next letter's number from 0.
* Lists of texts are Sentiment140's tweets, of which the fifth text is read, as for AG
  News; the vocabulary is that of the tweets in train/.
* Other texts are CelebA's, names of images in the folder ``data.images``, which are
  brought to 84×84 pixels as by LEAF's model.
"""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from hpcfl.data.datasets import Dataset
from hpcfl.data.owners import Owners
from hpcfl.data.sources import _images, ag_news
from hpcfl.data.sources.base import MOST_BYTES, Source
from hpcfl.data.sources.npz import MOST_CLASSES, gaps
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
POSITIONS = 80  # letters of a sample
TWEET, WORDS = 4, 25  # where a tweet's text stands, and the tokens that are read of it
PORTRAIT = (84, 84)
IMAGE = (1, 28, 28)
MOST_FILES = 10_000


class _Samples(BaseModel):
    x: list[list[float]] | list[list[str]] | list[str]
    y: list[int] | list[str]


class _Content(BaseModel):
    users: list[str]
    user_data: dict[str, _Samples]


class _User(NamedTuple):
    """A user's samples in one file: ``x`` [n, …], of tweets objects, ``y`` int64 [n]."""

    name: str
    x: np.ndarray
    y: np.ndarray


class Leaf(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["train/*.json", "test/*.json"]

    def read(
        self,
        name: str,
        root: Path,
        *,
        images: Annotated[
            str | None,
            Field(description="folder of the images that CelebA's samples name"),
        ] = None,
    ) -> Dataset:
        folder = None if images is None else Path(images).expanduser()
        train = _part(root / "train", folder, required=True)
        test = _part(root / "test", folder, required=False)
        users = [*train, *test]  # a user with samples in both parts is there twice
        kinds = {(user.x.dtype, user.x.shape[1:]) for user in users}
        if len(kinds) > 1:
            raise UserError(
                f"{root}: all users' samples must be alike, texts or as many numbers each"
            )
        x = np.concatenate([user.x for user in users])
        y = torch.from_numpy(np.concatenate([user.y for user in users]))
        if images is not None and x.dtype != np.uint8:
            raise UserError(f"data.images: the samples of {root} name no images")
        numbers: dict[str, int] = {}  # of clients, by name
        for user in users:
            numbers.setdefault(user.name, len(numbers))
        clients = [numbers[user.name] for user in users]
        sizes = [len(user.y) for user in users]
        return Dataset(
            root.name,
            y=y,
            **_fields(x, y, root, trained=sum(len(user.y) for user in train)),
            official_test=sum(len(user.y) for user in test),
            owners=Owners(tuple(numbers), np.repeat(clients, sizes)),
        )


def _part(folder: Path, images: Path | None, required: bool) -> list[_User]:
    """The users of all files in train/ or test/. Raises UserError."""
    users = []
    for path in _paths(folder, required):
        users += _users(path, images)
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


def _users(path: Path, images: Path | None) -> list[_User]:
    """The users in a file. Raises UserError where it is none of LEAF's."""
    try:
        content = _Content.model_validate_json(regular.read_bytes(path, MOST_BYTES))
        heartbeat.beat()
        users = []
        for name in content.users:
            x, y = _numbered(name, content.user_data[name], images)
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


def _numbered(
    user: str, samples: _Samples, images: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """One user's samples, as of ``_User``, and classes as numbers.

    Raises ValueError, or UserError for images.
    """
    x, y = samples.x, samples.y
    if len(x) != len(y) or not y:
        raise ValueError(f"user '{user}' has {len(x)} samples and {len(y)} classes")
    if isinstance(x[0], str) and (images is None or isinstance(y[0], str)):
        whole_texts = all(len(text) == POSITIONS for text in x)
        letters = all(isinstance(label, str) and len(label) == 1 for label in y)
        if not whole_texts or not letters:
            raise ValueError(
                f"user '{user}': texts must have {POSITIONS} letters, and classes one; "
                "CelebA's names of images need data.images, their folder"
            )
        return _letters(x) + 1, _letters(y)[:, 0] % len(LETTERS)
    if isinstance(y[0], str):
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    classes = np.array(y, np.int64)
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise ValueError(
            f"user '{user}': classes must be from 0 to {MOST_CLASSES - 1:,}"
        )
    if isinstance(x[0], str):
        return _portraits(user, x, images), classes
    if isinstance(x[0], list) and x[0] and isinstance(x[0][0], str):
        return _tweets(user, x), classes
    return _values(user, x), classes


def _values(user: str, rows: list[Any]) -> np.ndarray:
    """One user's rows of numbers, float32 [n, numbers]. Raises ValueError."""
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    values = np.array(rows)
    if not np.abs(values).max() <= np.finfo(np.float32).max:
        raise ValueError(f"user '{user}': NaN or infinities")
    return values.astype(np.float32)


def _tweets(user: str, rows: list[Any]) -> np.ndarray:
    """The texts of one user's tweets, objects [n]. Raises ValueError."""
    texts = np.empty(len(rows), object)
    for position, row in enumerate(rows):
        if len(row) <= TWEET:
            raise ValueError(
                f"user '{user}': a tweet must be a list of texts, the fifth of which is "
                f"read; one has {len(row)}"
            )
        texts[position] = row[TWEET]
    return texts


def _portraits(user: str, names: list[Any], folder: Path | None) -> np.ndarray:
    """The images of one user, uint8 [n, 3, height, width]. Raises ValueError for a name
    with a path, UserError for what is no image.
    """
    assert folder is not None  # else the names are read as texts
    images = []
    for name in names:
        if not re.fullmatch(_images.NAME, name):
            raise ValueError(f"user '{user}': {name!r:.60} is no name of an image")
        images.append(_images.read(folder / name, "JPEG", resized=PORTRAIT))
    return np.stack(images)


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


def _fields(x: np.ndarray, y: Tensor, root: Path, trained: int) -> dict[str, Any]:
    """The samples as a data set has them, with what depends on their kind.

    trained: how many of them, from the first, are training samples.
    """
    if x.dtype == np.int64:
        return {
            "x": torch.from_numpy(x),
            "vocabulary": len(LETTERS) + 1,
            "classes": len(LETTERS),
        }
    found: dict[str, Any] = {"classes": int(y.max()) + 1, "notes": gaps(root, y)}
    if x.dtype == object:
        texts = [ag_news.tokens(text) for text in x]
        ids, vocabulary = ag_news.encode(texts, WORDS, known=trained)
        return {"x": torch.from_numpy(ids), "vocabulary": vocabulary, **found}
    samples = torch.from_numpy(x)
    if x.dtype == np.uint8:
        return {"x": samples, **found}
    if x.shape[1] == IMAGE[1] * IMAGE[2]:
        return {"x": samples.view(-1, *IMAGE), "scale": 1.0, **found}
    return {"x": samples, "scale": 1.0, "mean": (0.0,), "std": (1.0,), **found}


plugin = Leaf()
