"""Omniglot (Lake et al. 2015): 32,460 images 1×28×28 of 1,623 characters in 50
alphabets, each drawn by 20 people, as PNG files in two archives.

With ``partition.scheme = "by-client"`` each person is a client; the number after the
underscore in a file's name identifies the person. Images are reduced from 105×105, with
black ink. Classes are alphabets, or characters with ``label = "character"``; each
person drew each character once.

PFLlib identifies the person by a file's position in an unsorted listing. Its clients
therefore mix people and differ between machines (heterogeneity.md D10).
"""

import io
import re
import zipfile
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hpcfl.data.datasets import Dataset, Owners
from hpcfl.data.sources import pictures
from hpcfl.data.sources.base import CheckedFiles
from hpcfl.errors import UserError

SIDE, SHRUNK = 105, 28
PEOPLE, ALPHABETS, CHARACTERS = 20, 50, 1623
DRAWING = re.compile(r"[^/]+/([^/]+)/(character\d\d)/\d{4}_(\d\d)\.png")


class Omniglot(CheckedFiles):
    """Two zip archives of FOLDER/ALPHABET/characterNN/NNNN_DD.png; DD is the person."""

    def read(
        self,
        name: str,
        root: Path,
        *,
        label: Annotated[
            Literal["alphabet", "character"],
            Field(description="classes: alphabets or characters"),
        ] = "alphabet",
    ) -> Dataset:
        images = []
        alphabets = []
        characters = []
        people = []
        for file in self.checksums:
            content = io.BytesIO(self.read_verified(name, root, file))
            with zipfile.ZipFile(content) as archive:
                for member in sorted(archive.namelist()):
                    drawing = DRAWING.fullmatch(member)
                    if drawing is None:
                        continue
                    where = f"{root / self.folder / file}: {member}"
                    images.append(_decode_drawing(archive.read(member), where))
                    alphabets.append(drawing[1])
                    characters.append(f"{drawing[1]}/{drawing[2]}")
                    people.append(int(drawing[3]))
        found = [len(set(people)), len(set(alphabets)), len(set(characters))]
        if found != [PEOPLE, ALPHABETS, CHARACTERS] or len(images) != (
            PEOPLE * CHARACTERS
        ):
            raise UserError(
                f"'{name}' must have {PEOPLE * CHARACTERS:,} images; its files have "
                f"{len(images):,}, by {found[0]} people, of {found[1]} alphabets and "
                f"{found[2]:,} characters"
            )
        words = alphabets if label == "alphabet" else characters
        named, numbers = np.unique(words, return_inverse=True)
        return Dataset.from_arrays(
            name,
            np.stack(images),
            numbers,
            len(named),
            owners=Owners(
                tuple(f"{person:02}" for person in range(1, PEOPLE + 1)),
                np.array(people) - 1,
            ),
        )


def _decode_drawing(content: bytes, where: str) -> np.ndarray:
    """Return a drawing as grey values, uint8 [1, 28, 28], each the mean of its area.

    Raises UserError.
    """
    return pictures.decode(
        io.BytesIO(content),
        where,
        "PNG",
        size=(SIDE, SIDE),
        mode="L",
        resized=(SHRUNK, SHRUNK),
        by_area=True,
    )


plugin = Omniglot(
    "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
    "omniglot-py",
    {
        "images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
        "images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
    },
    licence="MIT",
)
