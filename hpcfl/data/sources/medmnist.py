"""MedMNIST's two-dimensional sets with one label per image (Yang et al. 2023), each in
an npz file: heterogeneity.md D4.

With ``size = 64`` images have 64×64 pixels. Validation parts are not used. ChestMNIST
(several labels per image) and RetinaMNIST (grades as labels) are left out.
"""

import io
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles

URL = "https://zenodo.org/records/10519652/files/"


class Known(NamedTuple):
    """Published facts about a set.

    Attributes:
        about: one-sentence description.
        classes: number of classes.
        channels: number of channels.
        train: number of training images.
        test: number of test images.
        md5: checksum of the file with 28×28 pixels.
        md5_64: checksum of the file with 64×64 pixels.
        licence: licence of the data.
    """

    about: str
    classes: int
    channels: int
    train: int
    test: int
    md5: str
    md5_64: str
    licence: str = "CC BY 4.0"


@dataclass(frozen=True)
class MedMnist(CheckedFiles):
    """A data set in one npz file.

    The file holds ``train_images`` [n, side, side], or [n, side, side, 3] for coloured
    images, ``train_labels`` [n, 1], and the same arrays with ``test``.
    """

    known: Known

    def read(
        self,
        name: str,
        root: Path,
        *,
        size: Annotated[Literal[28, 64], Field(description="side in pixels")] = 28,
    ) -> Dataset:
        [file] = self.checksums if size == 28 else self.further
        content = io.BytesIO(self.read_verified(name, root, file))
        known = self.known
        images = []
        labels = []
        with np.load(content, allow_pickle=False) as arrays:
            for part in ("train", "test"):
                pixels = arrays[f"{part}_images"]
                last = pixels.reshape(-1, size, size, known.channels)
                images.append(last.transpose(0, 3, 1, 2))
                labels.append(arrays[f"{part}_labels"][:, 0])
        sizes = known.train, known.test
        return self.join(name, images, labels, classes=known.classes, sizes=sizes)


def make_source(name: str, known: Known) -> MedMnist:
    """Return the source of a set.

    Args:
        name: name of the set and of its files.
        known: facts about the set.
    """
    return MedMnist(
        URL,
        ".",
        {f"{name}.npz": known.md5},
        known,
        further={f"{name}_64.npz": known.md5_64},
        licence=known.licence,
        about=known.about,
    )


_table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
plugins = {name: make_source(name, Known(**fields)) for name, fields in _table.items()}
