"""Data sets in memory: loading by name, normalisation, and samples held out.

Each data set is read by one file in ``sources/``. Loading never downloads files.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfl.data import checks
from hpcfl.errors import UserError
from hpcfl.experiment import plugins, sections
from hpcfl.files.untrusted_files import refuse_unreadable
from hpcfl.rows import randomness

_PACKAGE = "hpcfl.data.sources"


@dataclass(frozen=True)
class Normalisation:
    """The function (x / scale − mean) / std; ``mean`` and ``std`` hold one value, or
    one per channel.
    """

    scale: float = 255.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return normalised samples [batch, *shape], floats on the device of ``x``.

        Token ids are returned unchanged.
        """
        if x.dtype in (torch.int32, torch.int64):
            return x
        # One conversion and then in-place operations are faster than multiplying bytes
        # by floats.
        own = x.to(torch.promote_types(x.dtype, torch.get_default_dtype()), copy=True)
        factor, offset = self._compute_line(own.dtype, own.device)
        per_channel = (-1, *[1] * (x.ndim - 2))
        return own.mul_(factor.view(per_channel)).add_(offset.view(per_channel))

    # Cached, because creating these small tensors for every batch would make a GPU wait
    # for the host.
    @cache  # noqa: B019
    def _compute_line(
        self, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return factor and offset of the normalisation x·factor + offset, each [1] or
        [channels].
        """
        factor = [1 / (self.scale * std) for std in self.std]
        offset = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        return (
            torch.tensor(factor, dtype=dtype, device=device),
            torch.tensor(offset, dtype=dtype, device=device),
        )


@dataclass(frozen=True)
class DataDescription:
    """Columns and names of a data set as its source read them; empty if it has none.

    Attributes:
        features: columns of a sample, in order.
        label: column of the classes.
        client: column of the clients.
        classes: names of the classes, by class number.
        notes: notes for the user, one line each.
    """

    features: tuple[str, ...] = ()
    label: str = ""
    client: str = ""
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Held:
    """The samples of one natural client, ascending.

    Attributes:
        name: name of the client.
        train: training samples, or all samples without ``test``.
        test: test samples, if the data set separates them.
    """

    name: str
    train: np.ndarray
    test: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Owners:
    """The natural clients of a data set.

    Attributes:
        names: names of the clients.
        numbers: owner of each sample, a position in ``names``, int64 [samples].
        unseen: number of clients, at the end of ``names``, that the data set reserves
            for testing; they can only be ``[newcomers]``.
    """

    names: tuple[str, ...]
    numbers: np.ndarray
    unseen: int = 0

    def list_held(self, official_test: int) -> list[Held]:
        """Return each client's samples.

        The last ``official_test`` samples of the data set become test samples of their
        clients. Without an official test split, or with ``unseen`` clients, samples are
        not separated.
        """
        order = np.argsort(self.numbers, kind="stable")
        counts = np.bincount(self.numbers, minlength=len(self.names))
        lists = np.split(order, np.cumsum(counts)[:-1])
        if not official_test or self.unseen:
            return list(map(Held, self.names, lists))
        first = len(self.numbers) - official_test
        held = []
        for name, samples in zip(self.names, lists, strict=True):
            held.append(Held(name, samples[samples < first], samples[samples >= first]))
        return held

    def describe_mistake(self, samples: int) -> str:
        """Return a description of the first mistake in the owners; "" without one.

        Args:
            samples: number of samples of the data set.
        """
        numbers = self.numbers
        if numbers.dtype.kind not in "iu":
            return f"owners must be positions in their names, not {numbers.dtype}"
        if len(numbers) != samples:
            return f"owners has {len(numbers):,} entries for {samples:,} samples"
        if numbers.min() < 0 or numbers.max() >= len(self.names):
            return f"owners has a number that is no position in its {len(self.names)} names"
        names, counts = np.unique(self.names, return_counts=True)
        if counts.max() > 1:
            return f"two clients have the name '{names[counts.argmax()]}'"
        return ""


def number_owners(owners: np.ndarray) -> Owners:
    """Return the natural clients of samples, sorted by number or name.

    Args:
        owners: number or name of each sample's client, [samples].
    """
    names, numbers = np.unique(owners, return_inverse=True)
    return Owners(tuple(map(str, names.tolist())), numbers)


# The part of a client's samples that measures an attack's success: test samples with
# the attackers' change.
PATCHED = "patched"
# Fields of a data set whose values are not normalised.
AS_THEY_ARE: Any = {"scale": 1.0, "mean": (0.0,), "std": (1.0,)}


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a data set; the official training split comes first.

    Attributes:
        name: name of the data set.
        x: ``[samples, *shape]``, uint8 images, float32 values, int32 or int64 token
            ids.
        y: class numbers from 0, int64 [samples].
        classes: number of classes.
        official_test: number of samples in the official test split, at the end; 0
            without one.
        scale: scale of ``Normalisation``.
        mean: mean of ``Normalisation``.
        std: standard deviation of ``Normalisation``.
        statistics: mean and standard deviation of each channel in the training split,
            or None.
        vocabulary: number of token ids, or None.
        numbers_words: Whether the source numbered the words or letters of texts; else
            token ids are the user's.
        merges: Whether schemes that merge the official splits merge them here; else
            these schemes use only the training split.
        owners: natural clients of the samples, or None.
        unread: names of the file's ignored arrays, the first few.
        notes: notes for the user, one line each.
        description: columns and names as the source read them.
    """

    name: str
    x: torch.Tensor
    y: torch.Tensor
    classes: int
    official_test: int = 0
    scale: float = 255.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    vocabulary: int | None = None
    numbers_words: bool = False
    merges: bool = True
    owners: Owners | None = None
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    description: DataDescription = field(default_factory=DataDescription)

    @classmethod
    def from_arrays(
        cls, name: str, x: np.ndarray, y: np.ndarray, classes: int, **more: Any
    ) -> "Dataset":
        """Return a data set of NumPy arrays.

        Args:
            name: name of the data set.
            x: samples, in the types and shapes of the attribute ``x``.
            y: class numbers [samples], integers of any type.
            classes: number of classes.
            more: further fields of the data set.
        """
        labels = torch.from_numpy(y.astype(np.int64))
        return cls(name, torch.from_numpy(x), labels, classes, **more)

    def drop_samples(self) -> "Dataset":
        """Return the data set with its attributes but without samples."""
        owners = self.owners and replace(
            self.owners, numbers=self.owners.numbers[:0].copy()
        )
        return replace(self, x=self.x[:0].clone(), y=self.y[:0].clone(), owners=owners)

    def select(self, chosen: np.ndarray, official_test: int) -> "Dataset":
        """Return a data set of chosen samples.

        Args:
            chosen: numbers of the samples, ascending.
            official_test: number of chosen samples in the official test split; these
                are the last ones.
        """
        index = torch.from_numpy(chosen)
        return replace(
            self,
            x=self.x[index],
            y=self.y[index],
            official_test=official_test,
            owners=self.owners
            and replace(self.owners, numbers=self.owners.numbers[chosen]),
        )

    def class_name(self, number: int) -> str:
        """Return the name of a class, or its number without a name."""
        names = self.description.classes
        return names[number] if number < len(names) else str(number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def normalise(self) -> Normalisation:
        """The normalisation, as a function that holds no reference to this data set."""
        return Normalisation(self.scale, self.mean, self.std)


def list_names() -> list[str]:
    """Return the names of the built-in data sets."""
    return list(plugins.list_names(_PACKAGE))


def find(name: str) -> Any:
    """Return the source of a data set. Raises UserError for an unknown name."""
    return plugins.find(_PACKAGE, "data.dataset", name)


def load(data: sections.Data, seed: int = 0) -> Dataset:
    """Load the data set of the section ``[data]``.

    Files are read from ``data.file``, ``data.root`` or $HPCFL_DATA.

    Args:
        data: the section.
        seed: seed of the partition, which also selects samples with ``data.redraw``.

    Raises:
        UserError: The name is unknown, the root or a file is missing, a file is
            damaged, or keys do not fit the data set.
    """
    source = find(data.dataset)
    place = _find_place(data, source)
    whole = _check(source.read(data.dataset, place, **data.options), data.dataset)
    dataset = _choose_samples(whole, data.samples, seed if data.redraw else 0)
    if data.augment and len(dataset.shape) != 3:
        raise UserError(
            f"data.augment = true: '{data.dataset}' has no images to crop and flip; "
            "remove this key"
        )
    if data.normalise == "half":
        return dataset
    if dataset.vocabulary is not None:
        raise UserError(
            f"data.normalise = 'statistics': the samples of '{data.dataset}' are token ids; use "
            "'half', which does not change them"
        )
    return _normalise(dataset)


def standardise(
    dataset: Dataset, data: sections.Data, train: Sequence[np.ndarray]
) -> Dataset:
    """Return the data set with the normalisation of ``data.normalise``.

    Args:
        dataset: the data set.
        data: the section ``[data]``.
        train: training samples of each client, whose statistics are used if the data
            set states none.
    """
    if data.normalise == "half" or dataset.statistics is not None:
        return dataset
    return _normalise(replace(dataset, statistics=_compute_statistics(dataset, train)))


def _normalise(dataset: Dataset) -> Dataset:
    """Return the data set normalised by its statistics, or unchanged without them."""
    if dataset.statistics is None:
        return dataset
    mean, std = dataset.statistics
    return replace(dataset, mean=mean, std=std)


def _check(dataset: Any, name: str) -> Dataset:
    """Return the data set of a source with notes on its format.

    Raises UserError if its fields contradict each other.
    """
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"data.dataset = '{name}': read must return a hpcfl.data.datasets.Dataset, not "
            f"{type(dataset).__name__}"
        )
    samples = len(dataset.x)
    misfit = checks.describe_labels(
        dataset.y, samples, dataset.classes
    ) or checks.describe_samples(dataset.x, dataset.vocabulary)
    stated = [(dataset.mean, dataset.std)]
    if dataset.statistics is not None:
        stated.append(dataset.statistics)
    for mean, std in stated:
        misfit = misfit or checks.describe_normalisation(
            dataset.scale, mean, std, dataset.x.shape[1:]
        )
    owners = dataset.owners
    if not isinstance(owners, Owners | None):
        misfit = misfit or "owners must be made by number_owners"
    elif owners is not None:
        misfit = misfit or owners.describe_mistake(samples)
    if not 0 <= dataset.official_test < samples:
        misfit = misfit or (
            f"official_test = {dataset.official_test} must be from 0 to {samples - 1:,}"
        )
    if misfit:
        raise UserError(f"data.dataset = '{name}': '{dataset.name}': {misfit}")
    names = owners.names if owners else ()
    found = (
        checks.describe_channels_last(dataset.x),
        checks.describe_faint(dataset.x, dataset.scale),
        checks.describe_spellings("clients", names),
    )
    notes = tuple(f"'{dataset.name}': {note}" for note in found if note)
    if not notes:
        return dataset
    return replace(dataset, notes=(*dataset.notes, *notes))


def _compute_statistics(
    dataset: Dataset, train: Sequence[np.ndarray]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, or of each column of a table.

    Columns that hold only 0 and 1, such as encoded categories, get mean 0 and deviation
    1.
    """
    from sklearn.preprocessing import StandardScaler  # takes a second to import

    scaler = StandardScaler()
    is_binary = np.full(dataset.shape[0], dataset.x.dim() == 2)
    for held in train:
        samples = dataset.x[torch.from_numpy(held)].double() / dataset.scale
        rows = samples.movedim(1, -1).reshape(-1, dataset.shape[0]).numpy()
        scaler.partial_fit(rows)
        is_binary &= np.isin(rows, [0, 1]).all(axis=0)
    mean = np.where(is_binary, 0, scaler.mean_)
    std = np.where(is_binary, 1, scaler.scale_)
    return tuple(mean.tolist()), tuple(std.tolist())


def _choose_samples(dataset: Dataset, wanted: int | None, seed: int) -> Dataset:
    """Select training samples of a data set, and the same share of its test samples, at
    least one.

    The selection is stratified: the share of each class is exact to within one sample.
    It depends only on the data set and ``seed``, so all methods have the same samples.

    Args:
        dataset: the data set.
        wanted: number of training samples, ``data.samples``; None for all.
        seed: seed of the selection.

    Raises:
        UserError: The data set has fewer samples.
    """
    samples = len(dataset.y)
    trained = samples - dataset.official_test
    if wanted is None:
        return dataset
    if wanted >= trained:
        raise UserError(
            f"data.samples = {wanted}: '{dataset.name}' has only {trained} training samples; "
            "remove this key to use all"
        )
    parts = [np.arange(trained), np.arange(trained, samples)]
    share = wanted / trained
    _, drawn = hold_out(parts, dataset.y.numpy(), share, seed, purpose="data.samples")
    if dataset.official_test == 1:
        drawn[1] = parts[1]  # without it the data would have no official test split
    chosen = np.concatenate(drawn)
    note = f"data.samples = {wanted}: only {wanted:,} of {trained:,} training samples are used"
    if dataset.official_test:
        note += f", and {len(drawn[1]):,} of {dataset.official_test:,} test samples"
    few = dataset.select(chosen, official_test=len(drawn[1]))
    return replace(few, notes=(*dataset.notes, note))


def _find_place(data: sections.Data, source: Any) -> Path:
    """Return the folder or file that a source reads. Raises UserError if the section
    does not name it.
    """
    if source.own_file != (data.file is not None):
        problem = "needs data.file, the path of your data"
        if not source.own_file:
            readers = _list_readers()
            problem = (
                f"does not read data.file = '{data.file}'; remove it, or use {readers}"
            )
        raise UserError(f"data.dataset = '{data.dataset}' {problem}")
    if data.file is not None:
        path = Path(data.file).expanduser()
        name = f"data.file = '{data.file}' ({path.absolute()})"
        advice = "a relative path begins in the working folder"
        with refuse_unreadable(name, missing=advice):
            path.stat()
        return path
    root = data.root or os.environ.get("HPCFL_DATA")
    if root is None and not source.built_in:
        fetched = source.home or f"hpcfl data download {data.dataset} --root DIR"
        raise UserError(
            f"data.dataset = '{data.dataset}' is read from files: set data.root or $HPCFL_DATA "
            f"to their folder; to fetch them: {fetched}"
        )
    return Path(root or ".").expanduser()


def _list_readers() -> str:
    """Return the names of the built-in data sets that read ``data.file``, for a
    message.
    """
    readers = [name for name in list_names() if find(name).own_file]
    return f"{', '.join(readers[:-1])} or {readers[-1]}"


def download(name: str, root: str | Path) -> None:
    """Download a data set's files into ``root`` and check them.

    Raises UserError if this fails.
    """
    plugins.find(_PACKAGE, "dataset", name).download(name, Path(root).expanduser())


def hold_out(
    train: Sequence[np.ndarray],
    labels: np.ndarray,
    share: float,
    seed: int,
    purpose: str = "validation",
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split each client's training samples into remaining and held-out samples.

    The selection is stratified: the share of each class is exact to within one sample.
    A client keeps at least one training sample, and holds out at least one if it has
    two.

    Args:
        train: training samples of each client, ascending.
        labels: class numbers of all samples of the data set, int64.
        share: share of a client's samples to hold out, in [0, 1).
        seed: seed of the random selection.
        purpose: part of the key of the random selection.

    Returns:
        Remaining and held-out samples of each client, ascending.
    """
    if not share:
        return list(train), [samples[:0] for samples in train]
    remaining = []
    held_out = []
    for client, samples in enumerate(train):
        generator = randomness.generator(seed, purpose, client)
        kept, chosen = _split(samples, labels[samples], share, generator)
        remaining.append(kept)
        held_out.append(chosen)
    return remaining, held_out


def _split(
    samples: np.ndarray,
    labels: np.ndarray,
    share: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Split one client's samples into remaining and held-out samples.

    Samples are sorted by class, in random order within a class, and held out at equal
    steps.
    """
    size = len(samples)
    count = min(max(1, round(share * size)), size - 1)
    shuffled = generator.permutation(size)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    steps = (np.arange(count) + 0.5) * size / max(count, 1)
    chosen = np.zeros(size, bool)
    chosen[by_class[steps.astype(int)]] = True
    return samples[~chosen], samples[chosen]
