"""SVHN (Netzer et al. 2011): 73,257 + 26,032 images 3×32×32 of house numbers, 10
classes, in MATLAB files.

With ``extra = true`` the 531,131 additional, easier images are training images too
(heterogeneity.md D3).
"""

import io
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles

TRAIN, TEST, EXTRA = "train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"
SIZES = {TRAIN: 73_257, TEST: 26_032, EXTRA: 531_131}


class Svhn(CheckedFiles):
    """MATLAB files with X [height, width, channels, n] and y [n, 1]; label 10 is digit
    0.
    """

    def read(
        self,
        name: str,
        root: Path,
        *,
        extra: Annotated[
            bool, Field(description="train on extra_32x32.mat too")
        ] = False,
    ) -> Dataset:
        import scipy.io  # a slow import that only this function needs

        files = [TRAIN, EXTRA, TEST] if extra else [TRAIN, TEST]
        images = []
        labels = []
        for file in files:
            arrays = scipy.io.loadmat(io.BytesIO(self.read_verified(name, root, file)))
            images.append(arrays["X"].transpose(3, 2, 0, 1))
            labels.append(arrays["y"][:, 0] % 10)
        trained = sum(SIZES[file] for file in files[:-1])
        sizes = trained, SIZES[TEST]
        return self.join(name, images, labels, classes=10, sizes=sizes)


plugin = Svhn(
    "http://ufldl.stanford.edu/housenumbers/",
    ".",
    {
        TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373",
        TEST: "eb5a983be6a315427106f1b164d9cef3",
    },
    further={EXTRA: "a93ce644f1a588dc4d68dda5feec44a7"},
    licence="non-commercial use",
)
