"""A rank's samples: on the device once as integers, normalised there, batches cut by index."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.datasets import Dataset
from hpcfl.fleet import augmentation
from hpcfl.rows import randomness


class Samples:
    """The training and test samples of a rank's clients.

    ``train[client]`` and ``test[client]`` are positions [n] in this rank's own tensors, of NumPy: an epoch's
    are put together from many small pieces; ``parts`` has those held out for validation too. Batches come out
    normalised, float32, as ``[count, *shape]``; images for a convolution on a CPU are laid out channels-last,
    which it runs faster.

    augment: whether ``vary`` makes training images differ. global_test: whether all clients are tested
    on the same samples.
    """

    def __init__(self, dataset: Dataset, clients: Sequence[int], train: Sequence[np.ndarray],
                 test: Sequence[np.ndarray], device: torch.device, channels_last: bool,
                 validation: Sequence[np.ndarray] | None = None, augment: bool = False,
                 global_test: bool = False):
        held_out = [part[:0] for part in train] if validation is None else validation
        given = {"train": train, "test": test, "validation": held_out}
        wanted = [np.asarray(part[client]) for part in given.values() for client in clients]
        chosen, position = np.unique(np.concatenate([*wanted, np.zeros(0, np.int64)]), return_inverse=True)
        positions = iter(np.split(position, np.cumsum([len(part) for part in wanted])))
        self.parts = {name: {client: next(positions) for client in clients} for name in given}
        index = torch.from_numpy(chosen.astype(np.int64))
        self.x, self.y = dataset.x[index].to(device), dataset.y[index].to(device)
        self.device = device
        self.classes = dataset.classes
        self.augment, self.global_test = augment, global_test
        self._normalise = dataset.normalise
        self._channels_last = channels_last and self.x.dim() == 4

    @property
    def train(self) -> dict[int, np.ndarray]:
        return self.parts["train"]

    @property
    def test(self) -> dict[int, np.ndarray]:
        return self.parts["test"]

    def dealt(self, pools: dict[int, np.ndarray]) -> "Samples":
        """The same samples dealt out anew: each client trains, is tested and is validated on its
        pool of positions."""
        other = copy.copy(self)
        other.parts = dict.fromkeys(self.parts, pools)
        return other

    def take(self, index: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
        """Samples at positions ``index`` [count] → x [count, *shape] normalised, y [count]."""
        index = torch.as_tensor(index).to(self.device)
        if self.augment:
            variants, index = index // len(self.y), index % len(self.y)
        x = self.x.index_select(0, index)  # faster than x[index] for bytes
        x = self._normalise(augmentation.apply(x, variants) if self.augment else x)
        if self._channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, self.y[index]

    def vary(self, index: np.ndarray, seed: int, *key: int | str) -> np.ndarray:
        """Positions of the same samples, each cropped and flipped at random as the key decides; unchanged
        without ``augment``.

        A position beyond the samples says how: it is number of samples × variant + position.
        """
        if not self.augment:
            return index
        draws = augmentation.draw(len(index), randomness.generator(seed, "augment", *key))
        varied: np.ndarray = index + len(self.y) * draws
        return varied

    def counts(self, client: int) -> Tensor:
        """How many training samples of each class a client holds, float64 [classes]."""
        return torch.bincount(self.y[torch.from_numpy(self.train[client]).to(self.device)],
                              minlength=self.classes).double().cpu()
