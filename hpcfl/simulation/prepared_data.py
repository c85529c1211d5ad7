"""Preparation of an experiment's data: data set, split over clients, shifts and counts."""

import zlib
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.samples import Assigned
from hpcfl.data import datasets, partition
from hpcfl.data.datasets import Dataset, hold_out
from hpcfl.data.partition import Split
from hpcfl.data.partitions.base import MergedScheme, Scheme
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config
from hpcfl.files import wording
from hpcfl.methods.base import Method
from hpcfl.rows import randomness
from hpcfl.simulation.hooks import call_hook

if TYPE_CHECKING:
    from hpcfl.data.poison import Poison
    from hpcfl.data.shifted import Shifts

# Keys of [data] that name clients of the data set, in all sources.
CLIENT_KEYS = ("client", "clients", "owners")


@dataclass(frozen=True)
class ClientData:
    """The samples of all clients and newcomers.

    Attributes:
        dataset: data set; without its samples in ``Prepared.data``.
        split: split of the data set over clients.
        assigned: indices of each client's samples in the data set.
        counts, test_counts: number of training and test samples in round 1, float64
            [clients and newcomers, classes].
        shifts: distribution shifts between clients, or None.
        attackers: ids of the attackers, ascending.
    """

    dataset: Dataset
    split: Split
    assigned: Assigned
    counts: Tensor
    test_counts: Tensor
    shifts: "Shifts | None"
    attackers: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Number of training samples in round 1, int64 [clients and newcomers]."""
        sizes: np.ndarray = self.counts.sum(dim=1).long().numpy()
        return sizes

    def count_in_round(self, round: int) -> Tensor:
        """Return the number of training samples of each class in a round.

        The counts use the labels of this round, float64 [clients and newcomers,
        classes].
        """
        if self.shifts is None or not self.shifts.relabels_later:
            return self.counts
        counts = self.shifts.count_train_classes(
            self.assigned.train, self.counts.shape[1], round
        )
        return torch.from_numpy(counts).double()

    def checksum(self) -> int:
        """Return a checksum of all samples and labels."""
        samples = zlib.crc32(self.dataset.x.contiguous().numpy().data)
        return zlib.crc32(self.dataset.y.contiguous().numpy().data, samples)


def prepare_data(
    config: Config, method: Method, dataset: Dataset | None = None
) -> ClientData:
    """Load the data set and split it over clients.

    Args:
        config: configuration of the experiment.
        method: method, which can request validation samples.
        dataset: data set that replaces the configured one.

    Raises:
        UserError: The data cannot be read or split.
    """
    scheme, newcomers = cast(Scheme, config.partition), config.newcomers.clients
    dataset = dataset or datasets.load(config.data, scheme.seed)
    attackers, poison = find_attack(config, dataset)
    shifts = draw_shifts(config, dataset, poison)
    replicas = shifts.replicas if shifts else None
    generators = randomness.read_generators()
    split = partition.make(scheme, dataset, newcomers, replicas, data=config.data)
    if randomness.read_generators() != generators:
        raise UserError(
            f"{user_code.locate(type(scheme))}partition.scheme = '{scheme.scheme}': draws from a "
            "global random generator, so each start draws another partition; use "
            "randomness.generator(self.seed, PURPOSE)"
        )
    if shifts and config.shift:
        split = replace(split, groups=shifts.make_groups())
    dataset = datasets.standardise(dataset, config.data, split.train[: scheme.clients])
    assigned = assign_samples(config, method, split, dataset)
    if poison is not None and poison.is_scored:
        assigned = replace(assigned, patched=split.test)
    trained = replace(split, train=list(assigned.train))
    counts, test_counts = count_samples(trained, dataset, shifts)
    return ClientData(
        dataset=dataset,
        split=split,
        assigned=assigned,
        counts=counts,
        test_counts=test_counts,
        shifts=shifts,
        attackers=attackers,
    )


def draw_shifts(
    config: Config, dataset: Dataset, poison: "Poison | None"
) -> "Shifts | None":
    """Draw the distribution shifts of clients; None if no sample changes."""
    if not config.shift and poison is None:
        return None
    from hpcfl.data import shifted  # most experiments have no shift

    return shifted.draw(
        shifts=config.shift,
        dataset=dataset,
        seed=config.partition.seed,
        clients=config.partition.clients,
        newcomers=config.newcomers.clients,
        poison=poison,
    )


def assign_samples(
    config: Config, method: Method, split: Split, dataset: Dataset
) -> Assigned:
    """Hold out samples of clients, first to choose the best round, then for the method.

    Raises:
        UserError: The method's share of held-out samples is not in [0, 1).
    """
    labels, seed = dataset.y.numpy(), config.partition.seed
    share = config.training.validation
    train, selection = hold_out(split.train, labels, share, seed, purpose="selection")
    of_method: float = call_hook(method, "validation_share", Real)
    if not 0 <= of_method < 1:
        raise UserError(
            f"{user_code.locate(method.validation_share)}{type(method).__name__}."
            f"validation_share returns {of_method:g}; expected a share in [0, 1)"
        )
    train, validation = hold_out(train, labels, of_method, seed)
    return Assigned(
        train=train,
        test=split.test,
        validation=validation,
        selection=selection if share else None,
        has_global_test=split.has_global_test,
    )


def find_attack(config: Config, dataset: Dataset) -> tuple[np.ndarray, "Poison | None"]:
    """Return the ids of the attackers, ascending, and the change of their samples.

    The change is None if samples do not change.

    Raises:
        UserError: The attack does not fit the data set.
    """
    if config.attack is None:
        return np.zeros(0, np.int64), None
    from hpcfl.data.poison import AttackFacts
    from hpcfl.updates.base import Attack

    attack = cast(Attack, config.attack)
    clients = config.partition.clients
    attackers = attack.find_attackers(config.seed, clients)
    facts = AttackFacts(
        place=0,
        seed=config.seed,
        clients=clients,
        newcomers=config.newcomers.clients,
        shape=dataset.shape,
        dtype=dataset.x.dtype,
        scale=dataset.scale,
        classes=dataset.classes,
    )
    return attackers, attack.poison(attackers, facts)


def list_groups(
    config: Config, data: ClientData
) -> tuple[np.ndarray, list[str]] | None:
    """Return the groups of clients by their shifts and by whether they attack.

    Returns:
        The group of each client and newcomer, int64 [clients and newcomers], and the
        names of the groups; None without shifts and attack.
    """
    drawn = data.split.groups
    if config.attack is None:
        return None if drawn is None else (drawn.group, drawn.names)
    attacks = np.isin(np.arange(len(data.counts)), data.attackers)
    kind = f"attacker, {config.attack.kind}"
    if drawn is None:
        return attacks.astype(np.int64), ["honest", kind]
    names = [*drawn.names, *(f"{name} · {kind}" for name in drawn.names)]
    return drawn.group + len(drawn.names) * attacks, names


def list_data_notes(config: Config, data: ClientData) -> list[str]:
    """Return notes on the data for the user before round 1."""
    dataset, split = data.dataset, data.split
    # Partition files of earlier versions have the notes of their data set, too.
    notes = [*dataset.description.notes, *dataset.notes, *split.notes]
    return [
        *dict.fromkeys(notes),
        *note_unused_clients(config, dataset, split),
        *note_merged_tests(config, dataset),
        *note_untrained(config, data),
        *note_words(config, dataset),
        *note_range(config, dataset),
        *note_late_attack(config),
    ]


def note_words(config: Config, dataset: Dataset) -> list[str]:
    """Return a note if a base from files reads words that the data set numbered."""
    if config.adapter.base is None or not dataset.numbers_words:
        return []
    return [
        f"adapter.base = '{config.adapter.base}': the token ids are the data set's own numbers of "
        "words or letters; a published model needs those of its tokenizer, in an npz file"
    ]


def note_range(config: Config, dataset: Dataset) -> list[str]:
    """Return notes on noise and patches for values from 0 to 1 if floats have others."""
    changes: dict[str, Any] = {"attack": config.attack}
    for place, shift in enumerate(config.shift):
        changes[f"shift.{place}"] = shift
    notes = []
    for key, change in changes.items():
        if not (
            dataset.x.is_floating_point() and getattr(change, "is_absolute", False)
        ):
            continue
        low, high = (end.item() / dataset.scale for end in dataset.x.aminmax())
        if low < 0 or high > 1:
            notes.append(
                f"{key}.kind = '{change.kind}': noise and patches are for values from 0 to 1, but "
                f"the samples have values from {low:.4g} to {high:.4g}; rescale them"
            )
    return notes


def note_late_attack(config: Config) -> list[str]:
    """Return a note if the attack begins after the last round."""
    attack = config.attack
    if attack is None or attack.since <= config.rounds:
        return []
    return [
        f"attack.since = {attack.since}: the attack begins after the last round, "
        f"{config.rounds}"
    ]


def count_samples(
    split: Split, dataset: Dataset, shifts: "Shifts | None"
) -> tuple[Tensor, Tensor]:
    """Count the training and test samples of each client and class in round 1.

    Args:
        split: split of the data set over clients.
        dataset: data set with labels.
        shifts: distribution shifts between clients, or None.

    Returns:
        Training counts and test counts, float64 [clients, classes] each.
    """
    classes = dataset.classes
    if shifts is not None:
        of_train = shifts.count_classes("train", split.train, classes, round=1)
        of_test = shifts.count_classes("test", split.test, classes, round=1)
    else:
        of_train, of_test = (
            split.count_classes(dataset.y.numpy(), classes, part)
            for part in ("train", "test")
        )
    return torch.from_numpy(of_train).double(), torch.from_numpy(of_test).double()


def note_unused_clients(config: Config, dataset: Dataset, split: Split) -> list[str]:
    """Return a note if a key names clients of the data set that are not used."""
    named = [key for key in CLIENT_KEYS if config.data.options.get(key) is not None]
    if not named or dataset.owners is None or split.names:
        return []
    return [
        f"data.{named[0]} selects {len(dataset.owners.names):,} clients of the data set, but "
        f"partition.scheme = '{config.partition.scheme}' ignores them; to use them, set "
        "partition.scheme = 'by-client'"
    ]


def note_merged_tests(config: Config, dataset: Dataset) -> list[str]:
    """Return a note if the scheme merges the test samples of a user's file with the
    training samples.
    """
    scheme = config.partition
    merges = isinstance(scheme, MergedScheme) and dataset.merges and not scheme.file
    if not (config.data.file and dataset.official_test and merges):
        return []
    return [
        f"partition.scheme = '{scheme.scheme}' merges the {dataset.official_test:,} test samples "
        f"of {config.data.file} with the training samples and splits each client's samples "
        "anew; partition.scheme = 'by-client' keeps them for testing"
    ]


def note_untrained(config: Config, data: ClientData) -> list[str]:
    """Return a note on classes that have test samples, but no training samples."""
    trained = config.partition.clients
    is_tested = data.test_counts[:trained].sum(dim=0) > 0
    is_trained = data.counts[:trained].sum(dim=0) > 0
    untrained = (is_tested & ~is_trained).nonzero().flatten().tolist()
    if not untrained:
        return []
    names = [data.dataset.class_name(number) for number in untrained]
    return [
        f"{len(untrained)} of {data.dataset.classes} classes have test samples, but no client has "
        f"training samples of them: {wording.list_first(names)}"
    ]
