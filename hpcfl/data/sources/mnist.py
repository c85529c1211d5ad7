"""MNIST (LeCun et al. 1998): 60,000 + 10,000 images 1×28×28, 10 classes, in IDX files."""

import gzip
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles


class IdxFiles(CheckedFiles):
    """Four IDX files, listed as train images, train labels, test images, test labels;
    uncompressed or, with ``.gz`` at the end, by gzip.
    """

    def read(self, name: str, root: Path) -> Dataset:
        arrays = []
        for file in self.checksums:
            content = self.content(name, root, file)
            if file.endswith(".gz"):
                content = gzip.decompress(content)
            arrays.append(parse_idx(content))
        images = [pixels[:, None] for pixels in arrays[::2]]
        return self.join(name, images, arrays[1::2], classes=10)


def parse_idx(content: bytes) -> np.ndarray:
    """Return the uint8 array in an IDX file, [items, …].

    Its bytes are two zeros, the type, the number of dimensions, their sizes (four each,
    big endian), data.
    """
    dimensions = content[3]
    sizes = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


plugin = IdxFiles(
    "MNIST",
    "MNIST/raw",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    licence="CC BY-SA 3.0",
)
