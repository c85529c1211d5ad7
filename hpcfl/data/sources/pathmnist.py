"""PathMNIST (Yang et al., MedMNIST, 2023): 89,996 + 7,180 tissue images 3×28×28, 9
classes, in an npz file.

Its validation part of 10,004 images is left out.
"""

import io
from pathlib import Path

import numpy as np
import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles


class MedMnist(CheckedFiles):
    """One npz file with ``train_images`` [n, 28, 28, 3] and ``train_labels`` [n, 1],
    and so for ``test``.
    """

    def read(self, name: str, root: Path) -> Dataset:
        [file] = self.checksums
        with np.load(
            io.BytesIO(self.content(name, root, file)), allow_pickle=False
        ) as parts:
            images = np.concatenate(
                [parts["train_images"], parts["test_images"]]
            ).transpose(0, 3, 1, 2)
            labels = np.concatenate([parts["train_labels"], parts["test_labels"]])[
                :, 0
            ].astype(np.int64)
            tested = len(parts["test_labels"])
        return Dataset(
            name,
            torch.from_numpy(np.ascontiguousarray(images)),
            torch.from_numpy(labels),
            classes=9,
            official_test=tested,
        )


plugin = MedMnist(
    "https://zenodo.org/records/10519652/files/",
    ".",
    {"pathmnist.npz": "a8b06965200029087d5bd730944a56c1"},
)
