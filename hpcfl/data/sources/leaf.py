"""Data sets in LEAF's format (Caldas et al., arXiv 1812.01097): a folder
(``data.file``) with JSON files in train/ and test/.

A file holds ``users`` and, for each user, ``user_data[user]["x"]`` and ``["y"]``, whose
length is in ``num_samples``. ``partition.scheme = "by-client"`` tests users on their
samples in test/. If no user of test/ is in train/ (LEAF's ``-t user``), the users of
test/ become the clients of ``[newcomers]``, and ``partition.train`` splits each user's
samples. The format of ``x`` determines the data set (heterogeneity.md D6):

* Lists of numbers are used unchanged. Lists of 784 numbers, as in FEMNIST, become
  images 1×28×28 of values 0 … 1, scaled as the built-in images; other values cause a
  note.
* Texts of 80 letters are from Shakespeare; the label is the next letter. Letters are
  numbered by LEAF's alphabet of 80 letters: token ids from 1, with 0 for other letters,
  and classes from 0. A label outside of the alphabet gets the last class, as in LEAF's
  code, and causes a note.
* Lists of texts are tweets of Sentiment140. The fifth text is encoded as in AG News,
  with the vocabulary of the tweets in train/.
* Other texts are CelebA's, names of images in the folder ``data.images``, which are
  resized to 84×84 pixels as in LEAF's model.
"""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from hpcfl.data import checks
from hpcfl.data.datasets import AS_THEY_ARE, DataDescription, Dataset, Owners
from hpcfl.data.sources import ag_news, pictures
from hpcfl.data.sources.base import MOST_BYTES, Source
from hpcfl.data.sources.npz import MOST_CLASSES, describe_gaps
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

MOST_FILES = 10_000
SAMPLES = rb'(?<!\\)"x"\s*:\s*\['  # start of a user's samples in a file
LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
POSITIONS = 80  # letters of a sample
TWEET = 4  # position of the text in a tweet's list
WORDS = 25  # tokens of an encoded tweet
PORTRAIT = (84, 84)
IMAGE = (1, 28, 28)
PIXELS = 28 * 28


class _Samples(BaseModel):
    model_config = ConfigDict(strict=True)

    x: list[list[float]] | list[list[str]] | list[str]
    y: list[int] | list[float] | list[str]


class _Content(BaseModel):
    model_config = ConfigDict(strict=True)

    users: list[str]
    num_samples: list[int] | None = None
    user_data: dict[str, _Samples]


class User(NamedTuple):
    """A user's samples in one file.

    Attributes:
        path: the file.
        name: name of the user.
        x: samples [n, …]; tweets are objects.
        y: class numbers, int64 [n]; −1 for other letters.
    """

    path: Path
    name: str
    x: np.ndarray
    y: np.ndarray


class Leaf(Source):
    own_file = True
    looked_for = ("train/*.json", "test/*.json")

    def read(
        self,
        name: str,
        root: Path,
        *,
        images: Annotated[
            str | None,
            Field(description="folder of the images named in CelebA's samples"),
        ] = None,
    ) -> Dataset:
        folder = None if images is None else Path(images).expanduser()
        train = _read_part(root / "train", folder)
        if not train:
            raise UserError(f"{root / 'train'}: must hold LEAF's .json files")
        test = _read_part(root / "test", folder)
        users = [*train, *test]  # users with samples in both parts occur twice
        first = users[0]
        for user in users:
            if (user.x.dtype, user.x.shape[1:]) != (first.x.dtype, first.x.shape[1:]):
                raise UserError(
                    f"{user.path}: user '{user.name}' has samples {_describe_form(user)}, user "
                    f"'{first.name}' in {first.path} has {_describe_form(first)}; all samples "
                    "must have one type and shape"
                )
        x = np.concatenate([user.x for user in users])
        y = torch.from_numpy(np.concatenate([user.y for user in users]))
        if images is not None and x.dtype != np.uint8:
            raise UserError(
                f"data.images: the samples in {root} are not names of images; remove this key"
            )
        owners = _number_users(train, test)
        trained = sum(len(user.y) for user in train)
        unknown = y < 0
        y[unknown] = len(LETTERS) - 1
        fields = _convert(x, y, root, trained)
        fields["notes"] = (*fields.get("notes", ()), *_describe_range(users))
        if unknown.any():
            fields["notes"] += (
                f"{root}: {unknown.sum():,} of {len(y):,} labels are not in LEAF's alphabet and "
                f"become its last letter, '{LETTERS[-1]}'",
            )
        described: tuple[str, ...] = ()
        if owners.unseen:
            described = (
                f"split by users: {owners.unseen} users are only in test/, "
                f"{len(owners.names) - owners.unseen} only in train/",
            )
        return Dataset(
            root.name,
            y=y,
            **fields,
            official_test=len(y) - trained,
            owners=owners,
            description=DataDescription(
                features=("x",),
                label="y",
                client="users",
                classes=tuple(LETTERS) if x.dtype == np.int64 else (),
                notes=described,
            ),
        )


def _read_part(folder: Path, images: Path | None) -> list[User]:
    """Read the users of all files in train/ or test/. Raises UserError."""
    users: dict[str, User] = {}
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MOST_FILES:
        raise UserError(f"{folder}: {len(paths):,} files, at most {MOST_FILES:,}")
    for path in paths:
        with untrusted_files.refuse_unreadable(path, "one of LEAF's files"):
            text = untrusted_files.read_user_file(path, MOST_BYTES)
            content = _validate(text)
            for name in content.users:
                if name in users:
                    first = users[name].path.name
                    raise UserError(f"{path}: user '{name}' is in {first} as well")
                x, y = _read_samples(content.user_data[name], images)
                users[name] = User(path, name, x, y)
    return list(users.values())


def _validate(text: bytes) -> _Content:
    """Parse a file and check that its keys agree. Raises ValueError."""
    try:
        content = _Content.model_validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise ValueError(f"{place}: {first['msg']}") from None
    checks.refuse_repeated("'users'", "user", content.users)
    differing = sorted(set(content.users) ^ set(content.user_data))
    if differing:
        raise ValueError(f"only one of 'users' and 'user_data' has '{differing[0]}'")
    counts = [len(content.user_data[user].y) for user in content.users]
    if content.num_samples not in (None, counts):
        raise ValueError(
            f"'num_samples' differs from the users' numbers of samples, "
            f"{wording.list_names(list(map(str, counts)))}"
        )
    lists = len(re.findall(SAMPLES, text))
    if lists != len(counts):  # a JSON parser keeps only the last of two equal keys
        raise ValueError(
            f"it has {lists} lists 'x' for {len(counts)} users; 'user_data' has a user twice"
        )
    return content


def _read_samples(
    samples: _Samples, images: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return one user's samples ``x`` and class numbers ``y``, as in ``User``.

    Raises ValueError, or UserError for images.
    """
    x: list[Any] = samples.x
    y = samples.y
    if len(x) != len(y) or not y:
        raise ValueError(f"a user has {len(x)} samples and {len(y)} classes")
    if isinstance(x[0], str) and (images is None or isinstance(y[0], str)):
        whole_texts = all(len(text) == POSITIONS for text in x)
        letters = all(isinstance(label, str) and len(label) == 1 for label in y)
        if not whole_texts or not letters:
            raise ValueError(
                f"texts must have {POSITIONS} letters, and labels one; for CelebA set "
                "data.images to the folder of the images"
            )
        return number_letters(x) + 1, number_letters(y)[:, 0]
    if isinstance(y[0], str) or not np.array_equal(np.array(y, np.int64), y):
        raise ValueError("classes must be integers")
    classes = np.array(y, np.int64)
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise ValueError(f"classes must be from 0 to {MOST_CLASSES - 1:,}")
    if isinstance(x[0], str) and images is not None:
        return _read_portraits(x, images), classes
    if len(x[0]) > TWEET and isinstance(x[0][TWEET], str):
        return np.array([row[TWEET] for row in x], object), classes
    if len({len(row) for row in x}) > 1 or not x[0]:
        raise ValueError("samples must be lists of equal length")
    array = np.array(x, float)  # raises ValueError for texts
    if place := untrusted_files.describe_nonfinite(array):
        raise ValueError(f"x{place}")
    return array.astype(np.float32), classes


def _read_portraits(names: list[str], folder: Path) -> np.ndarray:
    """Return the images of one user, uint8 [n, 3, height, width].

    Raises ValueError for a name with a path, UserError for a file that is not an image.
    """
    images = []
    for name in names:
        if not re.fullmatch(pictures.NAME, name):
            raise ValueError(f"{name!r:.60} is not a valid file name of an image")
        images.append(pictures.read(folder / name, "JPEG", resized=PORTRAIT))
    return np.stack(images)


def number_letters(texts: list[Any]) -> np.ndarray:
    """Return the position of each letter in the alphabet, int64 [texts, letters]; −1
    for other letters.
    """
    strings = np.array(texts, f"U{len(texts[0])}")
    codes = strings.view(np.uint32).reshape(len(texts), -1)
    numbers = np.full(128, -1, np.int64)  # by ASCII code
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    # Codes beyond ASCII are replaced by 0, which is not in the alphabet.
    return numbers[np.where(codes < len(numbers), codes, 0)]


def _number_users(train: list[User], test: list[User]) -> Owners:
    """Return the owners of all samples; users in train/ come first.

    Raises UserError if the spelling of a user differs between train/ and test/.
    """
    numbers: dict[str, int] = {}  # client number by name
    for user in (*train, *test):
        numbers.setdefault(user.name, len(numbers))
    tested = {user.name for user in test}
    spelled = {wording.fold(user.name): user for user in train}
    for name in sorted(tested - {user.name for user in train}):
        other = spelled.get(wording.fold(name))
        if other is not None:
            raise UserError(
                f"{other.path}: user '{other.name}' is spelled '{name}' in test/; use one "
                "spelling in both"
            )
    clients = [numbers[user.name] for user in (*train, *test)]
    sizes = [len(user.y) for user in (*train, *test)]
    unseen = len(test) if len(numbers) == len(train) + len(test) else 0
    return Owners(tuple(numbers), np.repeat(clients, sizes), unseen)


def _describe_form(user: User) -> str:
    """Return type and shape of samples, for a message."""
    return f"{user.x.dtype} {list(user.x.shape[1:])}"


def _describe_range(users: list[User]) -> tuple[str, ...]:
    """Return a note on the first user with pixel values outside 0 … 1."""
    for user in users:
        least, most = (user.x.min(), user.x.max()) if _is_image(user.x) else (0, 1)
        if least < 0 or most > 1:
            return (
                f"{user.path}: user '{user.name}' has values {least:g} … {most:g}; {PIXELS} "
                "numbers are scaled as an image of values 0 … 1, (x − 0.5) / 0.5",
            )
    return ()


def _is_image(x: np.ndarray) -> bool:
    """Return whether samples are images in the format of FEMNIST."""
    return x.dtype == np.float32 and x.shape[1] == PIXELS


def _convert(x: np.ndarray, y: Tensor, root: Path, trained: int) -> dict[str, Any]:
    """Return ``Dataset``'s fields that depend on the kind of samples.

    Args:
        x: samples of all users.
        y: class numbers of all users.
        root: folder of the data, for notes.
        trained: number of training samples, which come first.
    """
    if x.dtype == np.int64:
        return {
            "x": torch.from_numpy(x),
            "vocabulary": len(LETTERS) + 1,
            "numbers_words": True,
            "classes": len(LETTERS),
        }
    found: dict[str, Any] = {
        "classes": int(y.max()) + 1,
        "notes": describe_gaps(root, y),
    }
    if x.dtype == object:
        texts = [ag_news.tokenise(text) for text in x]
        ids, vocabulary = ag_news.encode(texts, WORDS, known=trained)
        known = {"vocabulary": vocabulary, "numbers_words": True}
        return {"x": torch.from_numpy(ids), **known, **found}
    samples = torch.from_numpy(x)
    if x.dtype == np.uint8:
        return {"x": samples, **found}
    if _is_image(x):
        return {"x": samples.view(-1, *IMAGE), "scale": 1.0, **found}
    return {"x": samples, **AS_THEY_ARE, **found}


plugin = Leaf()
