"""Data sets in memory, loaded by name. Each comes from one file in ``sources/``; nothing is downloaded unasked."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from hpcfl import config, plugins
from hpcfl.errors import UserError

_PACKAGE = "hpcfl.data.sources"


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a data set, the official training split first.

    x: [samples, *shape], uint8 images, float32 values or int64 token ids. y: int64 [samples] in [0, classes).
    official_test: how many samples at the end are the official test split, 0 where there is none.
    scale, mean, std: the normalisation (x / scale − mean) / std; mean and std hold one value or one per channel.
    """

    name: str
    x: torch.Tensor
    y: torch.Tensor
    classes: int
    official_test: int = 0
    scale: float = 255.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape."""
        return tuple(self.x.shape[1:])

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """Samples [batch, *shape] as a model takes them: float32 on their own device; token ids as they are."""
        if x.dtype == torch.int64:
            return x
        per_channel = (-1, *[1] * (x.ndim - 2))
        factor = torch.tensor([1 / (self.scale * std) for std in self.std], device=x.device)
        offset = torch.tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)], device=x.device)
        return x * factor.view(per_channel) + offset.view(per_channel)


def names() -> list[str]:
    """The built-in names of data sets."""
    return plugins.names(_PACKAGE)


def load(data: config.Data) -> Dataset:
    """The data set of the section ``[data]``, looked for in ``data.root``, else in $HPCFL_DATA.

    Raises UserError for an unknown name, a missing root, a missing or damaged file.
    """
    source = plugins.find(_PACKAGE, "data.dataset", data.dataset)
    root = data.root or os.environ.get("HPCFL_DATA")
    if root is None and not source.built_in:
        raise UserError(f"data.dataset = '{data.dataset}' is read from files: set data.root or $HPCFL_DATA to their "
                        f"folder; to fetch them: hpcfl data download {data.dataset} --root DIR")
    return source.read(data.dataset, Path(root or ".").expanduser())


def download(name: str, root: str | Path) -> None:
    """Fetch a data set's files into ``root`` and check them. Raises UserError if that fails."""
    plugins.find(_PACKAGE, "dataset", name).download(name, Path(root).expanduser())
