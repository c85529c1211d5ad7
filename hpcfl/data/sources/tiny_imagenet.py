"""Tiny-ImageNet (Stanford CS231n): 100,000 + 10,000 images 3×64×64, 200 classes, as
JPEG files.

``hpcfl data download`` decodes them once into one file, which the ranks of a node map
into memory. Without that file every rank decodes all images itself and keeps them, 110,000
of 12,290 bytes.

Read from its original folders. FedALA and cwFedAvg deal out the training folder alone.
The validation folder, labelled by its ``val_annotations.txt`` because its folder names
say nothing, is the official test split of the schemes that keep the splits apart.
"""

import re
from pathlib import Path

import numpy as np
import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources import _decoded, _images
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, user_files

FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIDE = 64
MOST_BYTES = 10_000_000  # of a text file
MOST_CLASSES = 256  # class numbers are kept in a byte
RECORD = np.dtype([("image", "u1", (3, SIDE, SIDE)), ("label", "u1"), ("test", "?")])
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Entry = tuple[Path, int, bool]  # image, class, whether it is a validation image


class TinyImageNet(Source):
    licence = "non-commercial research (ImageNet)"

    @property
    def looked_for(self) -> list[str]:
        return [
            f"{FOLDER}/wnids.txt",
            f"{FOLDER}/train/WORDNET-ID/images/*.JPEG",
            f"{FOLDER}/val/val_annotations.txt",
            f"{FOLDER}/val/images/*.JPEG",
        ]

    def read(self, name: str, root: Path) -> Dataset:
        folder = root / FOLDER
        if not (folder / "wnids.txt").is_file():
            raise UserError(
                f"{folder}: no wnids.txt there; to fetch it: hpcfl data download "
                f"{name} --root {root}"
            )
        table = _decoded.table(
            name, root, folder, RECORD, lambda: _entries(folder), _decode
        )
        labels = torch.from_numpy(table["label"].astype(np.int64))
        return Dataset(
            name,
            torch.from_numpy(table["image"]),
            labels,
            classes=len(_classes(folder)),
            official_test=int(table["test"].sum()),
            statistics=IMAGENET,
            merges=False,
        )

    def download(self, name: str, root: Path) -> None:
        """Fetch the images where they are missing, then decode them into one file."""
        if not (root / FOLDER / "wnids.txt").is_file():
            _decoded.fetch(name, root, root, URL, MD5)
        folder = root / FOLDER
        _decoded.write(folder, RECORD, _entries(folder), _decode)


def _classes(folder: Path) -> dict[str, int]:
    """Return the class number by WordNet id, in alphabetical order. Raises UserError."""
    words = sorted(
        {word for (word,) in _rows(folder / "wnids.txt", "WORDNET-ID", [_images.NAME])}
    )
    if not 0 < len(words) <= MOST_CLASSES:
        raise UserError(
            f"{folder / 'wnids.txt'}: {len(words)} classes; it must have 1 to {MOST_CLASSES}"
        )
    return {word: number for number, word in enumerate(words)}


def _entries(folder: Path) -> list[Entry]:
    """List training images by class and name, then the validation images in the order
    of their annotations.
    """
    classes = _classes(folder)
    train = [
        (path, number, False)
        for word, number in classes.items()
        for path in sorted((folder / "train" / word / "images").glob("*.JPEG"))
    ]
    annotations = folder / "val" / "val_annotations.txt"
    if not train or not annotations.is_file():
        raise UserError(
            f"{folder}: needs train/WORDNET-ID/images/*.JPEG and val/val_annotations.txt"
        )
    known = "|".join(map(re.escape, classes))
    pairs = _rows(
        annotations,
        "IMAGE and the WordNet id of a class in wnids.txt",
        [_images.NAME, known],
    )
    return train + [
        (folder / "val" / "images" / file, classes[word], True) for file, word in pairs
    ]


def _rows(path: Path, wanted: str, columns: list[str]) -> list[list[str]]:
    """Read the first columns of each line of a text file with tabulators,
    [lines][columns].

    columns: the patterns that they must match. wanted: what these are, for the message.
    Raises UserError.
    """
    try:
        lines = user_files.read_bytes(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None
    rows = [line.split("\t")[: len(columns)] for line in lines]
    for position, row in enumerate(rows, start=1):
        if len(row) < len(columns) or not all(map(re.fullmatch, columns, row)):
            told = f"it is {lines[position - 1]!r:.60}"
            raise UserError(f"{path}: line {position} must begin with {wanted}; {told}")
    return rows


def _decode(entry: Entry) -> tuple[np.ndarray, int, bool]:
    """Decode the record of an image; a grey one becomes coloured. Raises UserError."""
    path, number, test = entry
    return _images.read(path, "JPEG", size=(SIDE, SIDE)), number, test


plugin = TinyImageNet()
