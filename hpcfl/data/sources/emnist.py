"""EMNIST (Cohen et al. 2017): handwritten digits and letters 1×28×28, in IDX files; the
key ``split`` selects one of its six data sets.

``byclass`` and ``bymerge`` have 697,932 + 116,323 images in 62 and 47 classes,
``balanced`` 112,800 + 18,800 in 47, ``letters`` 124,800 + 20,800 in 26, ``digits``
240,000 + 40,000 and ``mnist`` 60,000 + 10,000 in 10. The classes of ``byclass`` are
0–9, A–Z, a–z, in this order, as in LEAF's FEMNIST.

Files are read from the archive, because only its checksum is public. Their images are
transposed and are turned upright here (heterogeneity.md D1).
"""

import gzip
import io
import zipfile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles
from hpcfl.data.sources.mnist import parse_idx


class _Split(NamedTuple):
    """Sizes of a split.

    Attributes:
        classes: number of classes.
        train: number of training samples.
        test: number of test samples.
        first: label of the first class in the files.
    """

    classes: int
    train: int
    test: int
    first: int = 0


SPLITS = {
    "byclass": _Split(62, 697_932, 116_323),
    "bymerge": _Split(47, 697_932, 116_323),
    "balanced": _Split(47, 112_800, 18_800),
    "letters": _Split(26, 124_800, 20_800, first=1),
    "digits": _Split(10, 240_000, 40_000),
    "mnist": _Split(10, 60_000, 10_000),
}


class Emnist(CheckedFiles):
    """One zip archive with four compressed IDX files for each split."""

    def read(
        self,
        name: str,
        root: Path,
        *,
        split: Annotated[
            Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"],
            Field(description="data set of EMNIST"),
        ] = "balanced",
    ) -> Dataset:
        [file] = self.checksums
        known = SPLITS[split]
        content = self.read_verified(name, root, file)
        images = []
        labels = []
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for part in ("train", "test"):
                member = f"gzip/emnist-{split}-{part}"
                x = archive.read(f"{member}-images-idx3-ubyte.gz")
                y = archive.read(f"{member}-labels-idx1-ubyte.gz")
                upright = parse_idx(gzip.decompress(x)).transpose(0, 2, 1)
                images.append(upright[:, None])
                labels.append(parse_idx(gzip.decompress(y)) - known.first)
        sizes = known.train, known.test
        return self.join(name, images, labels, classes=known.classes, sizes=sizes)


plugin = Emnist(
    "https://biometrics.nist.gov/cs_links/EMNIST/",
    "EMNIST/raw",
    {"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
    licence="public domain (NIST)",
)
