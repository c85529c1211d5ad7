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

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hpcfl.data.datasets import AS_THEY_ARE, DataDescription, Dataset, Owners
from hpcfl.data.sources import _leaf_files, _leaf_users, ag_news
from hpcfl.data.sources._leaf_files import User
from hpcfl.data.sources._leaf_samples import LETTERS
from hpcfl.data.sources.base import Source
from hpcfl.data.sources.npz import gaps
from hpcfl.errors import UserError

WORDS = 25  # tokens that are read of a tweet
IMAGE = (1, 28, 28)
PIXELS = 28 * 28


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
        train = _leaf_files.read_part(root / "train", folder, required=True)
        test = _leaf_files.read_part(root / "test", folder, required=False)
        users = [*train, *test]  # a user with samples in both parts is there twice
        _leaf_users.refuse_other_samples(users)
        x = np.concatenate([user.x for user in users])
        y = torch.from_numpy(np.concatenate([user.y for user in users]))
        if images is not None and x.dtype != np.uint8:
            raise UserError(f"data.images: the samples of {root} name no images")
        owners = _leaf_users.number_users(train, test)
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


def _describe_range(users: list[User]) -> tuple[str, ...]:
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
    return {"x": samples, **AS_THEY_ARE, **found}


plugin = Leaf()
