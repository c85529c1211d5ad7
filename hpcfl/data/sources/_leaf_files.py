"""LEAF's JSON files, each compared with what it states about itself."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict

from hpcfl.data.sources import _leaf_samples
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, user_files

MOST_FILES = 10_000
SAMPLES = rb'(?<!\\)"x"\s*:\s*\['  # the key of a user's samples, in a file


class _Samples(BaseModel):
    model_config = ConfigDict(strict=True)

    x: _leaf_samples.Rows
    y: _leaf_samples.Labels


class _Content(BaseModel):
    model_config = ConfigDict(strict=True)

    users: list[str]
    num_samples: list[int] | None = None
    user_data: dict[str, _Samples]


class User(NamedTuple):
    """A user's samples in one file: ``x`` [n, …], of tweets objects, ``y`` int64 [n]."""

    path: Path
    name: str
    x: np.ndarray
    y: np.ndarray


def read_part(folder: Path, images: Path | None, required: bool) -> list[User]:
    """Read the users of all files in train/ or test/. Raises UserError."""
    users: dict[str, User] = {}
    for path in _paths(folder, required):
        for user in _users(path, images):
            if user.name in users:
                raise UserError(
                    f"{path}: user '{user.name}' is in {users[user.name].path.name} as well"
                )
            users[user.name] = user
    return list(users.values())


def _paths(folder: Path, required: bool) -> list[Path]:
    """List the JSON files in a folder, in the order of names. Raises UserError where
    ``required`` and none.
    """
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MOST_FILES or (required and not paths):
        raise UserError(
            f"{folder}: must hold LEAF's .json files, from 1 to {MOST_FILES:,}; it holds "
            f"{len(paths):,}"
        )
    return paths


def _users(path: Path, images: Path | None) -> list[User]:
    """Read the users in a file. Raises UserError where it is none of LEAF's."""
    try:
        text = user_files.read_bytes(path, MOST_BYTES)
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
            samples = content.user_data[name]
            x, y = _leaf_samples.convert_samples(name, samples.x, samples.y, images)
            users.append(User(path, name, x, y))
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
