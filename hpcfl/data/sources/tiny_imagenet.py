"""Tiny-ImageNet (Stanford CS231n): 100,000 + 10,000 images 3×64×64, 200 classes, as
JPEG files.

``hpcfl data download`` decodes the files once into one file, which the ranks of a node
map into memory. Without that file every rank decodes all 110,000 images itself and
keeps them in memory, 12,290 bytes each.

Original folders are read. FedALA and cwFedAvg split only the training folder. The
validation folder is the official test split of schemes that keep the splits apart; its
labels are in ``val_annotations.txt``.
"""

import re
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources import pictures
from hpcfl.data.sources.pictures import DecodedPictures
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIDE = 64
MOST_BYTES = 10_000_000  # limit for a text file
MOST_CLASSES = 256  # class numbers are stored in a byte
RECORD = np.dtype([("image", "u1", (3, SIDE, SIDE)), ("label", "u1"), ("test", "?")])
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Entry = tuple[Path, int, bool]  # image, class, whether it is a validation image


class TinyImageNet(DecodedPictures):
    licence = "non-commercial research (ImageNet)"
    folder = FOLDER, "wnids.txt"
    record = RECORD
    archive = URL, MD5, "."

    looked_for = (
        f"{FOLDER}/wnids.txt",
        f"{FOLDER}/train/WORDNET-ID/images/*.JPEG",
        f"{FOLDER}/val/val_annotations.txt",
        f"{FOLDER}/val/images/*.JPEG",
    )

    def read(self, name: str, root: Path) -> Dataset:
        table = self.read_records(name, root)
        return Dataset.from_arrays(
            name,
            table["image"],
            table["label"],
            classes=len(_number_classes(root / FOLDER)),
            official_test=int(table["test"].sum()),
            statistics=IMAGENET,
            merges=False,
        )

    def list_entries(self, folder: Path) -> list[Entry]:
        """Return training images by class and name, then validation images in the order
        of ``val_annotations.txt``.
        """
        classes = _number_classes(folder)
        entries = []
        for word, number in classes.items():
            for path in sorted((folder / "train" / word / "images").glob("*.JPEG")):
                entries.append((path, number, False))
        annotations = folder / "val" / "val_annotations.txt"
        if not entries or not annotations.is_file():
            raise UserError(
                f"{folder}: needs train/WORDNET-ID/images/*.JPEG and val/val_annotations.txt"
            )
        known = "|".join(map(re.escape, classes))
        wanted = "IMAGE and the WordNet id of a class in wnids.txt"
        for file, word in _read_rows(annotations, wanted, [pictures.NAME, known]):
            entries.append((folder / "val" / "images" / file, classes[word], True))
        return entries

    def decode(self, entry: Entry) -> tuple[np.ndarray, int, bool]:
        """Return the record of an image; grey images are converted to RGB."""
        path, number, test = entry
        return pictures.read(path, "JPEG", size=(SIDE, SIDE)), number, test


def _number_classes(folder: Path) -> dict[str, int]:
    """Return the class numbers by WordNet id, in alphabetical order. Raises UserError."""
    path = folder / "wnids.txt"
    words = sorted(
        {word for (word,) in _read_rows(path, "WORDNET-ID", [pictures.NAME])}
    )
    if not 0 < len(words) <= MOST_CLASSES:
        raise UserError(
            f"{path}: {len(words)} classes; it must have 1 to {MOST_CLASSES}"
        )
    return {word: number for number, word in enumerate(words)}


def _read_rows(path: Path, wanted: str, columns: list[str]) -> list[list[str]]:
    """Return the first columns of each line of a tab-separated text file.

    Args:
        path: the file.
        wanted: description of the columns, for messages.
        columns: pattern of each column.

    Returns:
        Texts [lines][columns].

    Raises:
        UserError: A column does not match its pattern.
    """
    with untrusted_files.refuse_unreadable(path):
        lines = untrusted_files.read_user_file(path, MOST_BYTES).decode().splitlines()
    rows = []
    for position, line in enumerate(lines, start=1):
        row = line.split("\t")[: len(columns)]
        if len(row) < len(columns) or not all(map(re.fullmatch, columns, row)):
            raise UserError(
                f"{path}: line {position} must begin with {wanted}; it is {line!r:.60}"
            )
        rows.append(row)
    return rows


plugin = TinyImageNet()
