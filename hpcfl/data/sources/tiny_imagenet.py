"""Tiny-ImageNet (Stanford CS231n): 100,000 training and 10,000 validation images 3×64×64, 200 classes, as JPEG files.

Read from its original folders. FedALA and cwFedAvg deal out the training folder alone; the validation folder, labelled by its
``val_annotations.txt`` (its folder names say nothing), is the official test split of the schemes that keep the splits apart.
"""

from pathlib import Path

import numpy as np
import torch

from hpcfl.data import cache
from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError

FOLDER = "tiny-imagenet-200"
URL, MD5 = "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
SIDE = 64
RECORD = np.dtype([("image", "u1", (3, SIDE, SIDE)), ("label", "u1"), ("test", "?")])
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Entry = tuple[Path, int, bool]  # image, class, whether it is a validation image


class TinyImageNet(Source):
    def read(self, name: str, root: Path) -> Dataset:
        folder = root / FOLDER
        if not (folder / "wnids.txt").is_file():
            raise UserError(f"{folder}: no wnids.txt there; to fetch it: hpcfl data download {name} --root {root}")
        table = cache.kept(folder, "hpcfl-decoded.npy", RECORD, lambda: _entries(folder), _decode)
        labels = torch.from_numpy(table["label"].astype(np.int64))
        return Dataset(name, torch.from_numpy(table["image"]), labels, classes=len(_classes(folder)),
                       official_test=int(table["test"].sum()), statistics=IMAGENET, merges=False)

    def download(self, name: str, root: Path) -> None:
        from hpcfl.data.vision import torchvision  # takes a second to import and is needed here only

        try:
            torchvision.datasets.utils.download_and_extract_archive(URL, str(root), md5=MD5)
        except (OSError, RuntimeError) as error:
            raise UserError(f"{name} could not be downloaded to {root}: {' '.join(str(error).split())}") from None


def _classes(folder: Path) -> dict[str, int]:
    """WordNet id → class number, in alphabetical order."""
    return {word: number for number, word in enumerate(sorted((folder / "wnids.txt").read_text().split()))}


def _entries(folder: Path) -> list[Entry]:
    """Training images by class and name, then the validation images in the order of their annotations."""
    classes = _classes(folder)
    train = [(path, number, False) for word, number in classes.items()
             for path in sorted((folder / "train" / word / "images").glob("*.JPEG"))]
    annotations = folder / "val" / "val_annotations.txt"
    if not train or not annotations.is_file():
        raise UserError(f"{folder}: needs train/WORDNET-ID/images/*.JPEG and val/val_annotations.txt")
    pairs = [line.split("\t")[:2] for line in annotations.read_text().splitlines()]
    return train + [(folder / "val" / "images" / file, classes[word], True) for file, word in pairs]


def _decode(entry: Entry) -> tuple[np.ndarray, int, bool]:
    """A record; grey images become coloured."""
    from PIL import Image  # needed here only

    path, number, test = entry
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read as an image ({error})") from None
    if pixels.shape != (SIDE, SIDE, 3):
        raise UserError(f"{path}: {pixels.shape[1]}×{pixels.shape[0]} pixels, must be {SIDE}×{SIDE}")
    return pixels.transpose(2, 0, 1), number, test


plugin = TinyImageNet()
