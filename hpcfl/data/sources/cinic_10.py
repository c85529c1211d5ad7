"""CINIC-10 (Darlow et al. 2018): 90,000 + 90,000 images 3×32×32 of CIFAR-10's classes,
from CIFAR-10 and ImageNet, as PNG files.

The validation part, another 90,000 images, is used only with ``valid = true``, for
training. File names tell the origin of an image: with ``partition.scheme =
"by-client"`` there are two clients, ``cifar-10`` with the images from CIFAR-10 and
``imagenet`` with the others (heterogeneity.md D5).

``hpcfl data download`` decodes the 270,000 files once into one file, which the ranks of
a node map into memory. Without that file every rank decodes the images itself.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from hpcfl.data.datasets import Dataset, Owners
from hpcfl.data.sources import pictures
from hpcfl.data.sources.pictures import DecodedPictures
from hpcfl.errors import UserError

FOLDER = "CINIC-10"
URL = "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"
MD5 = "6ee4d0c996905fe93221de577967a372"
PARTS = ("train", "test", "valid")  # order in the decoded file
CLASSES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]
EACH = 9000  # images per class and part
SIDE = 32
RECORD = np.dtype(
    [("image", "u1", (3, SIDE, SIDE)), ("label", "u1"), ("imagenet", "?")]
)
ORIGINS = ("cifar-10", "imagenet")
STATISTICS = (
    (0.47889522, 0.47227842, 0.43047404),
    (0.24205776, 0.23828046, 0.25874835),
)


Entry = tuple[Path, int]  # image, class


class Cinic10(DecodedPictures):
    licence = "CC BY 4.0"
    folder = FOLDER, "valid"
    record = RECORD
    archive = URL, MD5, FOLDER

    looked_for = tuple(f"{FOLDER}/{part}/CLASS/*.png" for part in PARTS)

    def read(
        self,
        name: str,
        root: Path,
        *,
        valid: Annotated[
            bool, Field(description="train on the validation part as well")
        ] = False,
    ) -> Dataset:
        table = self.read_records(name, root)
        size = EACH * len(CLASSES)
        # A slice remains mapped; adding the validation part copies the images.
        records = table[: 2 * size]
        if valid:
            parts = [table[:size], table[2 * size :], table[size : 2 * size]]
            records = np.concatenate(parts)
        return Dataset.from_arrays(
            name,
            records["image"],
            records["label"],
            len(CLASSES),
            official_test=size,
            statistics=STATISTICS,
            owners=Owners(ORIGINS, records["imagenet"].astype(np.int64)),
        )

    def list_entries(self, folder: Path) -> list[Entry]:
        """Return the entries of all images, ordered by part, class and name."""
        entries = []
        for part in PARTS:
            for label, word in enumerate(CLASSES):
                paths = sorted((folder / part / word).glob("*.png"))
                if len(paths) != EACH:
                    raise UserError(
                        f"{folder / part / word}: must hold {EACH:,} .png files; it holds "
                        f"{len(paths):,}"
                    )
                entries += [(path, label) for path in paths]
        return entries

    def decode(self, entry: Entry) -> tuple[np.ndarray, int, bool]:
        """Return the record of an image; grey images are converted to RGB."""
        path, label = entry
        image = pictures.read(path, "PNG", size=(SIDE, SIDE))
        return image, label, not path.name.startswith("cifar")


plugin = Cinic10()
