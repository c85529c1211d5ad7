"""Samples of a rank's clients, stored on the device as they were read.

Batches are gathered, normalised and augmented on the device. Augmentation crops and
flips an image at random. The *variant* of an image is a number, drawn in advance, that
determines crop and flip.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcfl.data.datasets import PATCHED, Dataset
from hpcfl.rows import randomness

if TYPE_CHECKING:
    from hpcfl.data.shifted import Shifts

PADDING = 4
_OFFSETS = 2 * PADDING + 1
# Pairs of vertical and horizontal offsets, flipped or not, numbered from 1. Variant 0
# is the original image.
VARIANTS = _OFFSETS**2 * 2
FEW = 1024  # number of samples, more than a dry round uses


# Positions by first round of their validity, by part and by client.
Pools = dict[int, dict[str, dict[int, np.ndarray]]]


@dataclass(frozen=True)
class Assigned:
    """Numbers [n] in the data set of each client's samples, by client id.

    Attributes:
        train, test: training and test samples.
        validation: validation samples for the method; None without a validation split.
        selection: samples held out to choose the best round; None without such a split.
        patched: test samples on which an attack is scored; None without an attack.
        has_global_test: whether all clients share one test set.
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray] | None = None
    selection: Sequence[np.ndarray] | None = None
    patched: Sequence[np.ndarray] | None = None
    has_global_test: bool = False

    @property
    def parts(self) -> dict[str, Sequence[np.ndarray]]:
        """The samples by the name of their part."""
        nothing = [part[:0] for part in self.train]
        patched = {} if self.patched is None else {PATCHED: self.patched}
        return patched | {
            "train": self.train,
            "test": self.test,
            "validation": nothing if self.validation is None else self.validation,
            "selection": nothing if self.selection is None else self.selection,
        }


class Samples:
    """Training, test and validation samples of a rank's clients.

    ``train[client]``, ``test[client]`` and ``parts["validation"][client]`` are a
    client's *pools*: NumPy positions [n] among the samples of this rank. With
    distribution shifts they belong to one round, initially round 1 (see
    ``select_round``).

    Attributes:
        nbytes: bytes of all samples and labels.
        augment: whether ``vary`` augments training images.
        normalise: function that maps the data set's samples [n, *shape] to model
            inputs.
    """

    def __init__(
        self,
        dataset: Dataset,
        clients: Sequence[int],
        assigned: Assigned,
        device: torch.device,
        *,
        augment: bool = False,
        shifts: "Shifts | None" = None,
    ):
        """Gather the samples of some clients on a device.

        Args:
            dataset: data set of all clients.
            clients: ids of the rank's clients.
            assigned: samples of all clients.
            device: device for the samples.
            augment: whether training images are augmented.
            shifts: distribution shifts of clients; None without a shift.
        """
        self.selects = assigned.selection is not None
        self.has_global_test = assigned.has_global_test
        versions, self._pools = _number_pools(clients, assigned.parts, shifts)
        self.parts = self._pools[1]
        self._shifts = shifts
        # The image of each version, if several versions share one image.
        self._image: Tensor | None = None
        if shifts:
            made = shifts.make_versions(dataset, versions)
            self.x, self.y = made.x.to(device), made.y.to(device)
            if made.image is not None:
                self._image = made.image.to(device)
        else:
            x, y = dataset.x, dataset.y
            if len(versions) < len(y):
                index = torch.from_numpy(versions)
                x, y = x[index], y[index]
            self.x, self.y = x.to(device), y.to(device)
        self.nbytes = self.x.nbytes + self.y.nbytes
        self.device = device
        self.classes = dataset.classes
        self.vocabulary = dataset.vocabulary
        self.augment = augment
        self.normalise: Callable[[Tensor], Tensor] = dataset.normalise

    @property
    def train(self) -> dict[int, np.ndarray]:
        """Positions of each client's training samples, by client id."""
        return self.parts["train"]

    @property
    def test(self) -> dict[int, np.ndarray]:
        """Positions of each client's test samples, by client id."""
        return self.parts["test"]

    def keep_few(self) -> "Samples":
        """Return a copy that holds only the first FEW samples, to save memory.

        Shifted samples are returned unchanged.
        """
        if self._image is not None:
            return self
        other = copy.copy(self)
        other.x, other.y = self.x[:FEW].clone(), self.y[:FEW].clone()
        return other

    @property
    def has_tokens(self) -> bool:
        """Return whether samples are token ids."""
        return self.x.dtype in (torch.int32, torch.int64)

    def select_round(self, round: int) -> "Samples":
        """Return the same samples with the pools of a round."""
        if self._shifts is None or len(self._pools) == 1:
            return self
        other = copy.copy(self)
        other.parts = self._pools[self._shifts.find_latest_change(round)]
        return other

    def number_tests(self, clients: Sequence[int]) -> np.ndarray:
        """Return a number for each client, [n], equal for equal test samples."""
        if not self.has_global_test:
            return np.arange(len(clients))
        if self._shifts is None or not self._shifts.drawn:
            return np.zeros(len(clients), np.int64)
        kinds, _ = self._shifts.group_clients()
        return kinds[list(clients)]

    def redistribute(self, pools: dict[int, np.ndarray]) -> "Samples":
        """Return the same samples with one pool per client for all parts.

        The parts are training, tests and validation.
        """
        other = copy.copy(self)
        other.parts = dict.fromkeys(self.parts, pools)
        other.has_global_test = False
        other._shifts = None
        return other

    def replace_samples(self, x: Tensor, y: Tensor) -> "Samples":
        """Return a copy with other samples, without normalisation or augmentation.

        Args:
            x: samples [count, width].
            y: labels [count].
        """
        other = copy.copy(self)
        other.parts, other.x, other.y = {}, x, y
        other._shifts, other._image = None, None
        other.augment, other.normalise = False, lambda x: x
        return other

    def take(self, index: Tensor | np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the samples at positions: float32 x ``[count, *shape]`` and y [count].

        x is normalised.

        Args:
            index: positions [count], possibly from ``vary``.
        """
        index = torch.as_tensor(index).to(self.device)
        if self.augment:
            variants, index = index // len(self.y), index % len(self.y)
        image = index if self._image is None else self._image.index_select(0, index)
        x = self.x.index_select(0, image)  # faster than x[index] for bytes
        x = self.normalise(crop_and_flip(x, variants) if self.augment else x)
        return x, self.y[index]

    def vary(self, index: np.ndarray, seed: int, *key: int | str) -> np.ndarray:
        """Return positions for ``take`` that crop and flip the samples at random.

        A position encodes its variant: number of samples · variant + position. Without
        ``augment`` the result is ``index``.

        Args:
            index: positions of samples.
            seed, key: key of the random variants.
        """
        if not self.augment:
            return index
        draws = draw_variants(len(index), randomness.generator(seed, "augment", *key))
        varied: np.ndarray = index + len(self.y) * draws
        return varied

    def draw_by_class(
        self, client: int, times: int, size: int, seed: int, *key: int | str
    ) -> np.ndarray:
        """Draw training samples: ``times`` draws of ``size`` samples of each class.

        A class with fewer samples gives all of them.

        Args:
            client: client id.
            times: number of draws.
            size: maximum number of samples in a draw.
            seed, key: key of the draws.
        """
        pool = self.train[client]
        labels = self.y[torch.from_numpy(pool).to(self.device)].cpu().numpy()
        drawn = []
        for label in np.unique(labels):
            of_class = pool[labels == label]
            random = randomness.generator(seed, "class draws", *key, int(label))
            drawn += [
                of_class[random.permutation(len(of_class))[:size]] for _ in range(times)
            ]
        return np.concatenate(drawn) if drawn else pool

    def counts(self, client: int) -> Tensor:
        """Count a client's training samples of each class, float64 [classes]."""
        return (
            torch.bincount(
                self.y[torch.from_numpy(self.train[client]).to(self.device)],
                minlength=self.classes,
            )
            .double()
            .cpu()
        )


def count_samples(
    clients: Sequence[int], assigned: Assigned, shifts: "Shifts | None" = None
) -> int:
    """Return the number of samples on a rank with some clients, as for ``Samples``."""
    return len(_number_pools(clients, assigned.parts, shifts)[0])


def _number_pools(
    clients: Sequence[int],
    parts: Mapping[str, Sequence[np.ndarray]],
    shifts: "Shifts | None",
) -> tuple[np.ndarray, Pools]:
    """Return the samples that clients use in any round, and the clients' pools.

    Samples are int64 [count]; pools are positions among them.
    """
    rounds = shifts.changes if shifts else [1]
    wanted = []
    for round in rounds:
        for name, part in parts.items():
            for client in clients:
                held = np.asarray(part[client])
                if shifts:
                    held = shifts.list_versions(name, client, held, round)
                wanted.append(held)
    chosen, position = np.unique(
        np.concatenate([*wanted, np.zeros(0, np.int64)]), return_inverse=True
    )
    numbered = iter(np.split(position, np.cumsum([len(part) for part in wanted])))
    pools: Pools = {}
    for round in rounds:
        pools[round] = {}
        for name in parts:
            pools[round][name] = {client: next(numbered) for client in clients}
    return chosen.astype(np.int64), pools


def choose_some(
    pool: np.ndarray, most: int | None, seed: int, *key: int | str
) -> np.ndarray:
    """Return at most ``most`` positions of a pool, drawn at random, in its order.

    Args:
        pool: positions of a client's samples.
        most: maximum number of positions; None for all.
        seed, key: key of the draw.
    """
    if most is None or len(pool) <= most:
        return pool
    order = randomness.permutation(len(pool), seed, *key)
    chosen: np.ndarray = pool[np.sort(order[:most])]
    return chosen


def pad_positions(parts: list[np.ndarray], size: int) -> np.ndarray:
    """Return each client's positions as a row [size], padded with −1.

    Args:
        parts: at most ``size`` positions for each client.
        size: number of columns.
    """
    positions = np.full((len(parts), size), -1)
    lengths = np.array([[len(part)] for part in parts])
    positions[np.arange(size) < lengths] = np.concatenate(parts)
    return positions


def draw_variants(count: int, generator: np.random.Generator) -> np.ndarray:
    """Draw ``count`` random variants, uniform over 1 … ``VARIANTS``, int64 [count]."""
    return generator.integers(1, VARIANTS + 1, count)


def crop_and_flip(images: Tensor, variants: Tensor) -> Tensor:
    """Pad images with 4 zero pixels, crop them to their size, and flip some of them.

    Args:
        images: images [n, channels, height, width].
        variants: crop and left-right flip of each image, int64 [n].
    """
    plain = variants == 0
    code = variants - 1
    down = torch.where(plain, PADDING, code // (2 * _OFFSETS))[:, None]
    right = torch.where(plain, PADDING, code // 2 % _OFFSETS)[:, None]
    flipped = ((code % 2 == 1) & ~plain)[:, None]
    number, channel, height, width = (
        torch.arange(size, device=images.device) for size in images.shape
    )
    rows = down + height
    columns = right + torch.where(flipped, width.flip(0), width)
    padded = pad(images, [PADDING] * 4)
    return padded[
        number[:, None, None, None],
        channel[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
