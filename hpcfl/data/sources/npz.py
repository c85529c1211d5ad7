"""Your own data: a .npz file (``data.file``) with samples ``x`` [n, …] and class numbers ``y`` [n].

uint8 samples are images [n, channels, height, width] or values 0 … 255, scaled as the built-in images; floats are taken as they
are; other integers are token ids [n, positions], 0 for padding.
"""

from pathlib import Path

import numpy as np
import torch

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError


class OwnFile(Source):
    own_file = True

    def read(self, name: str, root: Path) -> Dataset:
        x, y = _arrays(root)
        if problem := _problem(x, y):
            raise UserError(f"{root}: {problem}")
        labels, classes = torch.from_numpy(y.astype(np.int64)), int(y.max()) + 1
        stem = root.stem
        if x.dtype == np.uint8:
            return Dataset(stem, torch.from_numpy(x), labels, classes)
        if x.dtype.kind == "f":
            return Dataset(stem, torch.from_numpy(x.astype(np.float32)), labels, classes, scale=1.0, mean=(0.0,), std=(1.0,))
        return Dataset(stem, torch.from_numpy(x.astype(np.int64)), labels, classes, vocabulary=int(x.max()) + 1)


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return content["x"], content["y"]
    except KeyError:
        raise UserError(f"{path}: must hold the arrays 'x' and 'y'") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # numpy and zipfile raise many kinds for what is not a whole .npz
        raise UserError(f"{path}: cannot be read as a .npz file without pickled objects "
                        f"({' '.join(str(error).split())})") from None


def _problem(x: np.ndarray, y: np.ndarray) -> str:
    """What is wrong with the arrays, or nothing."""
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or not len(y) or 0 in x.shape:
        return f"x has the shape {x.shape} and y {y.shape}; they must be [n, …] and [n], n at least 1"
    if y.dtype.kind not in "iu" or y.min() < 0:
        return f"y must hold class numbers 0, 1, …; it is {y.dtype}" + (f" from {y.min()}" if y.dtype.kind in "iu" else "")
    if x.dtype.kind not in "fiu":
        return f"x must hold numbers; it is {x.dtype}"
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        return "x holds NaN or infinities"
    return "x holds negative token ids" if x.dtype.kind == "i" and x.min() < 0 else ""


plugin = OwnFile()
