"""LEAF's clients (Caldas et al., arXiv 1812.01097): a folder (``data.file``) with JSON
in train/ and test/.

A file holds ``users``, and for each user ``user_data[user]["x"]`` and ``["y"]``, as many
as ``num_samples`` says. ``partition.scheme = "by-client"`` tests users on their samples
in test/. Where all users in test/ are others than those in train/ (LEAF's ``-t user``),
they are the clients of ``[newcomers]``, and ``partition.train`` cuts each user's samples.
The form of ``x`` says which of LEAF's data sets it is (heterogeneity.md D6):

* Lists of numbers are taken as they are; 784 of them, as of FEMNIST, are an image
  1×28×28 of values 0 … 1, scaled as the built-in images. Other values are noted.
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
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from hpcfl.data.datasets import Dataset
from hpcfl.data.description import DataDescription
from hpcfl.data.owners import Owners
from hpcfl.data.sources import _images, ag_news
from hpcfl.data.sources.base import MOST_BYTES, Source
from hpcfl.data.sources.npz import MOST_CLASSES, gaps
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular, values

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
POSITIONS = 80  # letters of a sample
TWEET, WORDS = 4, 25  # where a tweet's text stands, and the tokens that are read of it
PORTRAIT = (84, 84)
IMAGE = (1, 28, 28)
PIXELS = 28 * 28
MOST_FILES = 10_000
SAMPLES = rb'(?<!\\)"x"\s*:\s*\['  # the key of a user's samples, in a file


class _Samples(BaseModel):
    model_config = ConfigDict(strict=True)

    x: list[list[float]] | list[list[str]] | list[str]
    y: list[int] | list[float] | list[str]


class _Content(BaseModel):
    model_config = ConfigDict(strict=True)

    users: list[str]
    num_samples: list[int] | None = None
    user_data: dict[str, _Samples]


class _User(NamedTuple):
    """A user's samples in one file: ``x`` [n, …], of tweets objects, ``y`` int64 [n]."""

    path: Path
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
        _refuse_other_samples(users)
        x = np.concatenate([user.x for user in users])
        y = torch.from_numpy(np.concatenate([user.y for user in users]))
        if images is not None and x.dtype != np.uint8:
            raise UserError(f"data.images: the samples of {root} name no images")
        owners = _owners(train, test)
        fields = _fields(x, y, root, trained=sum(len(user.y) for user in train))
        fields["notes"] = (*fields.get("notes", ()), *_describe_range(users))
        return Dataset(
            root.name,
            y=y,
            **fields,
            official_test=sum(len(user.y) for user in test),
            owners=owners,
            description=_describe(x, owners),
        )


def _part(folder: Path, images: Path | None, required: bool) -> list[_User]:
    """Read the users of all files in train/ or test/. Raises UserError."""
    users: dict[str, _User] = {}
    for path in _paths(folder, required):
        for user in _users(path, images):
            if user.name in users:
                raise UserError(
                    f"{path}: user '{user.name}' is in {users[user.name].path.name} as well"
                )
            users[user.name] = user
    return list(users.values())


def _owners(train: list[_User], test: list[_User]) -> Owners:
    """Return the clients, those of train/ first. Raises UserError where a user's name is
    spelled in another way in test/.
    """
    trained = {user.name for user in train}
    tested = {user.name for user in test}
    _refuse_other_spelling(train, sorted(tested - trained))
    numbers: dict[str, int] = {}  # of clients, by name
    for user in (*train, *test):
        numbers.setdefault(user.name, len(numbers))
    clients = [numbers[user.name] for user in (*train, *test)]
    sizes = [len(user.y) for user in (*train, *test)]
    unseen = len(tested) if trained.isdisjoint(tested) else 0
    return Owners(tuple(numbers), np.repeat(clients, sizes), unseen)


def _describe_range(users: list[_User]) -> tuple[str, ...]:
    """Return a note on the first user whose images have other values than 0 … 1."""
    for user in users:
        least, most = (user.x.min(), user.x.max()) if _is_image(user.x) else (0, 1)
        if least < 0 or most > 1:
            return (
                f"{user.path}: user '{user.name}' has values {least:g} … {most:g}; {PIXELS} "
                "numbers are scaled as an image of values 0 … 1, (x − 0.5) / 0.5",
            )
    return ()


def _is_image(x: np.ndarray) -> bool:
    """Return whether samples are images as FEMNIST's."""
    return x.dtype == np.float32 and x.shape[1] == PIXELS


def _describe(x: np.ndarray, owners: Owners) -> DataDescription:
    """Describe how the files were understood."""
    is_letters = x.dtype == np.int64
    notes: tuple[str, ...] = ()
    if owners.unseen:
        notes = (
            f"split by users: {owners.unseen} users in test/ are others than the "
            f"{len(owners.names) - owners.unseen} in train/",
        )
    return DataDescription(
        features=("x",),
        label="y",
        client="users",
        classes=tuple(LETTERS) if is_letters else (),
        notes=notes,
    )


def _refuse_other_spelling(train: list[_User], only_tested: list[str]) -> None:
    """Raise UserError for a user of test/ alone whose name differs from one in train/ in
    nothing but case or spaces.
    """
    spelled = {_spelling(user.name): user for user in train}
    for name in only_tested:
        other = spelled.get(_spelling(name))
        if other is not None:
            raise UserError(
                f"{other.path}: user '{other.name}' is spelled '{name}' in test/; names "
                "must be equal in both"
            )


def _spelling(name: str) -> str:
    """Return a name without its case and spaces."""
    return "".join(name.split()).casefold()


def _refuse_other_samples(users: list[_User]) -> None:
    """Raise UserError for the first user with samples of another type or length."""
    first = users[0]
    for user in users:
        if (user.x.dtype, user.x.shape[1:]) != (first.x.dtype, first.x.shape[1:]):
            raise UserError(
                f"{user.path}: user '{user.name}' has samples {_form(user.x)}, user "
                f"'{first.name}' in {first.path} has {_form(first.x)}; all users' samples "
                "must be alike"
            )


def _form(x: np.ndarray) -> str:
    """Return the type and shape of samples, for a message."""
    return f"{x.dtype} {list(x.shape[1:])}"


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
    """Read the users in a file. Raises UserError where it is none of LEAF's."""
    try:
        text = regular.read_bytes(path, MOST_BYTES)
        content = _Content.model_validate_json(text)
        heartbeat.beat()
        _refuse_other_counts(content)
        lists = len(re.findall(SAMPLES, text))
        if lists != len(content.user_data):  # JSON's reader takes the last of two
            raise ValueError(
                f"it has {lists} lists 'x' for {len(content.user_data)} users; a user "
                "stands twice in 'user_data'"
            )
        users = []
        for name in content.users:
            x, y = _numbered(name, content.user_data[name], images)
            users.append(_User(path, name, x, y))
        return users
    except pydantic.ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        place = ".".join(map(str, first["loc"]))[:80]
        raise UserError(
            f"{path}: cannot be read as one of LEAF's files ({place}: {first['msg']})"
        ) from None
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None


def _refuse_other_counts(content: _Content) -> None:
    """Raise ValueError where a file's own lists of users and numbers differ from its
    samples.
    """
    if len(set(content.users)) < len(content.users):
        repeated = next(u for u in content.users if content.users.count(u) > 1)
        raise ValueError(f"user '{repeated}' stands twice in 'users'")
    differing = sorted(set(content.users) ^ set(content.user_data))
    if differing:
        raise ValueError(
            f"'users' has {len(content.users)} names and 'user_data' "
            f"{len(content.user_data)}; only one of them has '{differing[0]}'"
        )
    if content.num_samples is None:
        return
    counts = [len(content.user_data[user].y) for user in content.users]
    if len(content.num_samples) != len(counts):
        raise ValueError(
            f"'num_samples' has {len(content.num_samples)} entries for {len(counts)} users"
        )
    for user, stated, count in zip(
        content.users, content.num_samples, counts, strict=True
    ):
        if stated != count:
            raise ValueError(
                f"user '{user}' has {count} samples, 'num_samples' says {stated}"
            )


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
    if not np.array_equal(classes, y):
        raise ValueError(f"user '{user}': classes must be integers")
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
    """Return one user's rows of numbers, float32 [n, numbers]. Raises ValueError."""
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    array = np.array(rows, float)
    place = values.describe_nonfinite(array)
    if place:
        raise ValueError(f"user '{user}': x{place}")
    return array.astype(np.float32)


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
    """Return the samples as a data set has them, with what depends on their kind.

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
    if _is_image(x):
        return {"x": samples.view(-1, *IMAGE), "scale": 1.0, **found}
    return {"x": samples, "scale": 1.0, "mean": (0.0,), "std": (1.0,), **found}


plugin = Leaf()
