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
import uuid
import warnings
from pathlib import Path

import numpy as np
import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular

FOLDER = "tiny-imagenet-200"
DECODED = "hpcfl-decoded.npy"
URL, MD5 = (
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
)
SIDE = 64
MOST_BYTES, MOST_CLASSES = (
    10_000_000,
    256,
)  # of a text file; class numbers are kept in a byte
NAME = r"\w[\w.-]*"  # a file or folder, without a path
RECORD = np.dtype([("image", "u1", (3, SIDE, SIDE)), ("label", "u1"), ("test", "?")])
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Entry = tuple[Path, int, bool]  # image, class, whether it is a validation image


class TinyImageNet(Source):
    licence = "non-commercial research (ImageNet)"

    @property
    def looked_for(self) -> list[str]:
        return [
            f"{FOLDER}/{file}"
            for file in (
                "wnids.txt",
                "train/WORDNET-ID/images/*.JPEG",
                "val/val_annotations.txt",
                "val/images/*.JPEG",
            )
        ]

    def read(self, name: str, root: Path) -> Dataset:
        folder = root / FOLDER
        if not (folder / "wnids.txt").is_file():
            raise UserError(
                f"{folder}: no wnids.txt there; to fetch it: hpcfl data download "
                f"{name} --root {root}"
            )
        table = _map_decoded(name, root)
        if table is None:
            entries = _entries(folder)
            table = np.empty(len(entries), RECORD)
            _decode_into(table, entries)
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
            self._fetch(name, root)
        entries = _entries(root / FOLDER)
        path = root / FOLDER / DECODED
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            table = np.lib.format.open_memmap(temporary, "w+", RECORD, (len(entries),))
            _decode_into(table, entries)
            table.flush()
            temporary.replace(path)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({atomic.reason(error)})"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _fetch(self, name: str, root: Path) -> None:
        # torchvision takes a second to import and is needed here only.
        from hpcfl.data.vision import torchvision

        try:
            torchvision.datasets.utils.download_and_extract_archive(
                URL, str(root), md5=MD5
            )
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"{name} could not be downloaded to {root}: "
                f"{' '.join(str(error).split())}"
            ) from None


def _map_decoded(name: str, root: Path) -> np.ndarray | None:
    """The decoded images [n] of RECORD, mapped and private to this process; None where
    they have not been decoded yet.

    Raises UserError where the file is anything else.
    """
    path = root / FOLDER / DECODED
    table: np.ndarray | None = None
    try:
        regular.opened(path).close()
        table = np.lib.format.open_memmap(path, mode="c")
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        pass  # it is refused below
    if table is None or table.dtype != RECORD or table.ndim != 1:
        raise UserError(
            f"{path}: damaged, or not what hpcfl writes; to write it again: "
            f"hpcfl data download {name} --root {root}"
        )
    return table


def _decode_into(table: np.ndarray, entries: list[Entry]) -> None:
    """Decode each of the ``entries`` into its place in ``table`` [n] of RECORD."""
    for position, entry in enumerate(entries):
        table[position] = _decode(entry)
        heartbeat.beat()


def _classes(folder: Path) -> dict[str, int]:
    """WordNet id → class number, in alphabetical order. Raises UserError."""
    words = sorted(
        {word for (word,) in _rows(folder / "wnids.txt", "WORDNET-ID", [NAME])}
    )
    if not 0 < len(words) <= MOST_CLASSES:
        raise UserError(
            f"{folder / 'wnids.txt'}: {len(words)} classes; it must have 1 to {MOST_CLASSES}"
        )
    return {word: number for number, word in enumerate(words)}


def _entries(folder: Path) -> list[Entry]:
    """Training images by class and name, then the validation images in the order of
    their annotations.
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
        annotations, "IMAGE and the WordNet id of a class in wnids.txt", [NAME, known]
    )
    return train + [
        (folder / "val" / "images" / file, classes[word], True) for file, word in pairs
    ]


def _rows(path: Path, wanted: str, columns: list[str]) -> list[list[str]]:
    """The first columns of each line of a text file with tabulators, [lines][columns].

    columns: the patterns that they must match. wanted: what these are, for the message.
    Raises UserError.
    """
    try:
        lines = regular.read_bytes(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None
    rows = [line.split("\t")[: len(columns)] for line in lines]
    for position, row in enumerate(rows, start=1):
        if len(row) < len(columns) or not all(map(re.fullmatch, columns, row)):
            told = f"it is {lines[position - 1]!r:.60}"
            raise UserError(f"{path}: line {position} must begin with {wanted}; {told}")
    return rows


def _decode(entry: Entry) -> tuple[np.ndarray, int, bool]:
    """The record of an image; a grey one becomes coloured.

    Raises UserError for a file that is no such image; one of another size is refused
    before it is decoded.
    """
    from PIL import Image  # needed here only

    path, number, test = entry
    try:
        with regular.opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=["JPEG"]) as image:
                if image.size != (SIDE, SIDE):
                    raise UserError(
                        f"{path}: {image.width}×{image.height} pixels, must be {SIDE}×{SIDE}"
                    )
                pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path}: cannot be read as an image ({atomic.reason(error)})"
        ) from None
    return pixels.transpose(2, 0, 1), number, test


plugin = TinyImageNet()
