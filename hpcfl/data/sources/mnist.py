"""MNIST, Fashion-MNIST and KMNIST in IDX files.

KMNIST is read from compressed files, because only their checksums are public
(heterogeneity.md D2).
"""

import gzip
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles


class IdxFiles(CheckedFiles):
    """Four IDX files: training images, training labels, test images, test labels.

    Names that end with ``.gz`` are decompressed.
    """

    def read(self, name: str, root: Path) -> Dataset:
        arrays = []
        for file in self.checksums:
            content = self.read_verified(name, root, file)
            if file.endswith(".gz"):
                content = gzip.decompress(content)
            arrays.append(parse_idx(content))
        images = [pixels[:, None] for pixels in arrays[::2]]
        return self.join(name, images, arrays[1::2], classes=10)


def parse_idx(content: bytes) -> np.ndarray:
    """Return the uint8 array in an IDX file, [items, …].

    Its bytes are two zeros, the type, the number of dimensions, the sizes (four bytes
    each, big endian) and the data.
    """
    dimensions = content[3]
    sizes = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


plugins = {
    "fashion-mnist": IdxFiles(
        "FashionMNIST",
        "FashionMNIST/raw",
        {
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        licence="MIT",
        about="Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images 1×28×28, 10 "
        "classes, in IDX files.",
    ),
    "kmnist": IdxFiles(
        "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        "KMNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
            "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
            "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
            "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
        },
        licence="CC BY-SA 4.0",
        about="KMNIST (Clanuwat et al. 2018): 60,000 + 10,000 images 1×28×28 of "
        "cursive Japanese, 10 classes, in IDX files.",
    ),
    "mnist": IdxFiles(
        "MNIST",
        "MNIST/raw",
        {
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        licence="CC BY-SA 3.0",
        about="MNIST (LeCun et al. 1998): 60,000 + 10,000 images 1×28×28, 10 "
        "classes, in IDX files.",
    ),
}
