"""Handwritten digits bundled with scikit-learn: 1,797 images 1×8×8, values 0 … 16, 10
classes.
"""

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import Source


@cache
def _read_table() -> np.ndarray:
    """Return pixels and class of each sample, float64 [1797, 65], read once per
    process.
    """
    # read from the file, because importing scikit-learn takes longer than the first
    # rounds of a small run
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "datasets" / "data"
    return np.loadtxt(folder / "digits.csv.gz", delimiter=",")


class Digits(Source):
    built_in = True
    licence = "CC BY 4.0"

    def read(self, name: str, root: Path) -> Dataset:
        rows = _read_table()
        return Dataset(
            name,
            torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).to(torch.uint8),
            torch.from_numpy(rows[:, -1]).long(),
            classes=10,
            scale=16.0,
        )


plugin = Digits()
