"""A rank's samples: on the device once as integers, normalised there, batches cut by index."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.datasets import Dataset


class Samples:
    """The training and test samples of a rank's clients.

    ``train[client]`` and ``test[client]`` are positions in this rank's own tensors; ``parts`` has those held
    out for validation too. Batches come out normalised, float32,
    as ``[count, *shape]``; images for a convolution on a CPU are laid out channels-last, which it runs 1.5 times faster.
    """

    def __init__(self, dataset: Dataset, clients: Sequence[int], train: Sequence[np.ndarray],
                 test: Sequence[np.ndarray], device: torch.device, channels_last: bool,
                 validation: Sequence[np.ndarray] | None = None):
        held_out = [part[:0] for part in train] if validation is None else validation
        given = {"train": train, "test": test, "validation": held_out}
        wanted = [np.asarray(part[client]) for part in given.values() for client in clients]
        chosen, position = np.unique(np.concatenate([*wanted, np.zeros(0, np.int64)]), return_inverse=True)
        pieces = np.split(position, np.cumsum([len(part) for part in wanted]))
        positions = iter(torch.from_numpy(piece) for piece in pieces)
        self.parts = {name: {client: next(positions) for client in clients} for name in given}
        self.train, self.test = self.parts["train"], self.parts["test"]
        index = torch.from_numpy(chosen.astype(np.int64))
        self.x, self.y = dataset.x[index].to(device), dataset.y[index].to(device)
        self.device = device
        self.classes = dataset.classes
        self._normalise = dataset.normalise
        self._channels_last = channels_last and self.x.dim() == 4

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Samples at positions ``index`` [count] → x [count, *shape] normalised, y [count]."""
        index = index.to(self.device)
        x = self._normalise(self.x[index])
        if self._channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, self.y[index]

    def counts(self, client: int) -> Tensor:
        """How many training samples of each class a client holds, float64 [classes]."""
        return torch.bincount(self.y[self.train[client].to(self.device)], minlength=self.classes).double().cpu()
