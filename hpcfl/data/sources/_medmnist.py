"""MedMNIST's two-dimensional sets with one class an image (Yang et al. 2023), each in an
npz file: heterogeneity.md D4.

Their validation parts are left out. ChestMNIST, whose images have several labels, and
RetinaMNIST, whose labels are grades, are not among them.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles

URL = "https://zenodo.org/records/10519652/files/"


class _Set(NamedTuple):
    """md5, md5_64: of the files with images of 28 and of 64 pixels."""

    classes: int
    channels: int
    train: int
    test: int
    md5: str
    md5_64: str
    licence: str = "CC BY 4.0"


SETS = {
    "pathmnist": _Set(
        9,
        3,
        89_996,
        7_180,
        "a8b06965200029087d5bd730944a56c1",
        "55aa9c1e0525abe5a6b9d8343a507616",
    ),
    "dermamnist": _Set(
        7,
        3,
        7_007,
        2_005,
        "0744692d530f8e62ec473284d019b0c7",
        "b70a2f5635c6199aeaa28c31d7202e1f",
        licence="CC BY-NC 4.0",
    ),
    "octmnist": _Set(
        4,
        1,
        97_477,
        1_000,
        "c68d92d5b585d8d81f7112f81e2d0842",
        "e229e9440236b774d9f0dfef9d07bdaf",
    ),
    "pneumoniamnist": _Set(
        2,
        1,
        4_708,
        624,
        "28209eda62fecd6e6a2d98b1501bb15f",
        "8f4eceb4ccffa70c672198ea285246c6",
    ),
    "breastmnist": _Set(
        2,
        1,
        546,
        156,
        "750601b1f35ba3300ea97c75c52ff8f6",
        "742edef2a1fd1524b2efff4bd7ba9364",
    ),
    "bloodmnist": _Set(
        8,
        3,
        11_959,
        3_421,
        "7053d0359d879ad8a5505303e11de1dc",
        "2b94928a2ae4916078ca51e05b6b800b",
    ),
    "tissuemnist": _Set(
        8,
        1,
        165_466,
        47_280,
        "ebe78ee8b05294063de985d821c1c34b",
        "123ece2eba09d0aa5d698fda57103344",
    ),
    "organamnist": _Set(
        11,
        1,
        34_561,
        17_778,
        "68e3f8846a6bd62f0c9bf841c0d9eacc",
        "2dcccc29b88e6da5a01161ef20cda288",
    ),
    "organcmnist": _Set(
        11,
        1,
        12_975,
        8_216,
        "b9ceb9546e10131b32923c5bbeaea2b1",
        "3ce34a8724ea6f548e6db4744d03b6a9",
    ),
    "organsmnist": _Set(
        11,
        1,
        13_932,
        8_827,
        "9ab87b696fb54e2a387ebe992d6ed5f1",
        "53a6d115339d874c25e309a994ff46d3",
    ),
}


@dataclass(frozen=True)
class MedMnist(CheckedFiles):
    """One npz file with ``train_images`` [n, side, side], for coloured ones [n, side,
    side, 3], and ``train_labels`` [n, 1], and so for ``test``.
    """

    known: _Set

    def read(
        self,
        name: str,
        root: Path,
        *,
        size: Annotated[Literal[28, 64], Field(description="pixels of a side")] = 28,
    ) -> Dataset:
        [file] = self.checksums if size == 28 else self.further
        content = io.BytesIO(self.content(name, root, file))
        images = []
        labels = []
        with np.load(content, allow_pickle=False) as arrays:
            for part in ("train", "test"):
                images.append(arrays[f"{part}_images"])
                labels.append(arrays[f"{part}_labels"][:, 0].astype(np.int64))
        pixels = np.concatenate(images).reshape(-1, size, size, self.known.channels)
        channels_first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        dataset = Dataset(
            name,
            torch.from_numpy(channels_first),
            torch.from_numpy(np.concatenate(labels)),
            self.known.classes,
            official_test=len(labels[1]),
        )
        return self.sized(dataset, self.known.train, self.known.test)


def of(name: str) -> MedMnist:
    """The source of one of SETS."""
    known = SETS[name]
    return MedMnist(
        URL,
        ".",
        {f"{name}.npz": known.md5},
        known,
        further={f"{name}_64.npz": known.md5_64},
        licence=known.licence,
    )
