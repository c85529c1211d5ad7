"""Handwritten digits bundled with scikit-learn: 1,797 images 1×8×8, values 0 … 16, 10 classes."""

from pathlib import Path

import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import Source


class Digits(Source):
    built_in = True

    def read(self, name: str, root: Path) -> Dataset:
        from sklearn.datasets import load_digits  # takes a second to import and is needed here only

        digits = load_digits()
        return Dataset(name, torch.from_numpy(digits.images).to(torch.uint8).unsqueeze(1),
                       torch.from_numpy(digits.target).long(), classes=10, scale=16.0)


plugin = Digits()
