"""Natural clients: each holds the samples that the data, or a file of lists, say are
its own.

A writer's digits or a role's lines, for example. Client numbers follow the order in
which the data name the clients. Where the data keep test samples apart, these are a
client's test samples; else they are cut as in other schemes, a share ``train`` for
training. Where the data keep whole clients apart for testing, as LEAF's split by users
does, these are the clients of ``[newcomers]``, and every client's samples are cut.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from hpcfl.data.datasets import Dataset, Held
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.errors import UserError
from hpcfl.files import hdf5, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.rows import randomness

MOST_BYTES = 1 << 28
MAGIC = b"\x89HDF\r\n\x1a\n"  # an HDF5 file begins with it


class Apart(TypedDict):
    """A client's lists of samples in a file."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    train: list[int]
    test: list[int]


class ByClient(Scheme):
    scheme: str = "by-client"
    lists: str | None = Field(
        None,
        description="JSON or HDF5 file with each client's sample numbers; "
        "default: the clients that the data set names",
    )

    def draw_from(self, dataset: Dataset) -> Draw:
        if self.lists is not None:
            held = read_lists(self.lists)
            _refuse_impossible(held, len(dataset.y), self.lists)
            draw = self._drawn(held, self.lists)
            return replace(
                draw,
                notes=[
                    *draw.notes,
                    *_describe_uneven(held, len(dataset.y), self.lists),
                ],
            )
        if dataset.owners is None:
            has = ", ".join(map(repr, dataset.unread))
            has = f"; it has {has}" if has else ""
            raise UserError(
                f"partition.scheme = 'by-client': '{dataset.name}' does not say whose its "
                "samples are; set partition.lists, or bring data that do (an array 'client' in "
                f"an npz file{has}; a column 'client', or data.client, of csv, parquet or "
                "huggingface; data.clients or data.owners of image-folder; npz-folders; "
                "leaf; pfllib)"
            )
        held = dataset.owners.held(dataset.official_test)
        where = f"'{dataset.name}'"
        if dataset.owners.unseen:
            return self._drawn_with_unseen(held, dataset.owners.unseen, where)
        return self._drawn(held, where)

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        raise UserError(
            "partition.scheme = 'by-client' cannot be drawn from labels alone"
        )

    def _drawn(self, held: list[Held], where: str) -> Draw:
        """Return as many clients as are asked for: all, or some that are drawn at random,
        with the seed.

        where: what names the clients, for errors. Raises UserError where it names too
        few.
        """
        if len(held) < self.clients:
            raise UserError(
                f"partition.clients = {self.clients}: {where} has only {len(held)} clients"
            )
        chosen = self._chosen(len(held), self.clients, "clients")
        notes = []
        if self.clients < len(held):
            notes.append(
                f"{self.clients} of the {len(held):,} clients of {where} take part, drawn with partition.seed"
            )
        return self._dealt([held[position] for position in chosen], where, notes)

    def _drawn_with_unseen(self, held: list[Held], unseen: int, where: str) -> Draw:
        """Return clients that are drawn among those of training, and newcomers among
        the last ``unseen`` ones, which the data keep for testing.

        Raises UserError where there are too few of either, or no newcomers.
        """
        trained = len(held) - unseen
        clients = self.clients - self.newcomers
        if not 0 < self.newcomers <= unseen or clients > trained:
            raise UserError(
                f"partition.scheme = 'by-client': {where} is split by users, {unseen} test "
                f"users are others than the {trained} training users; set "
                f"newcomers.clients = {min(unseen, self.newcomers or unseen)} (at most "
                f"{unseen}), to be scored after the last round, and partition.clients = "
                f"{min(clients, trained)} (at most {trained})"
            )
        seen = self._chosen(trained, clients, "clients")
        others = self._chosen(unseen, self.newcomers, "newcomers")
        chosen = [held[position] for position in (*seen, *(trained + others))]
        note = (
            f"{where} is split by users: {clients} of its {trained:,} training users take "
            f"part, {self.newcomers} of its {unseen:,} test users are the newcomers, and "
            "partition.train cuts the samples of each"
        )
        return self._dealt(chosen, where, [note])

    def _chosen(self, clients: int, count: int, purpose: str) -> np.ndarray:
        """Return ``count`` of so many clients, drawn with the seed, ascending."""
        order = randomness.permutation(clients, self.seed, purpose)
        return np.sort(order[:count])

    def _dealt(self, clients: list[Held], where: str, notes: list[str]) -> Draw:
        """Return the training and test samples of the clients that take part."""
        trains = []
        tests = []
        for number, client in enumerate(clients):
            train, test = self._parts(number, client, where)
            trains.append(train)
            tests.append(test)
        names = [client.name for client in clients]
        return Draw(trains, tests, notes=notes, names=names)

    def _parts(
        self, number: int, client: Held, where: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the training and the test samples of a natural client, which is client
        ``number`` of the run.
        """
        train = client.train
        test = client.test
        if test is None:
            train, test = self.cut(number, client.train)
        if not len(train) or not len(test):
            raise UserError(
                f"{where}: client '{client.name}' has {len(train)} samples to train and {len(test)} "
                "to test on, it needs at least one of each; remove such clients from the data"
            )
        return train, test


def read_lists(path: str) -> list[Held]:
    """Read each client's samples from a user's file, clients in the order of the file
    (HDF5: of names).

    JSON: ``{"ann": [0, 5, 6], …}``, or ``{"ann": {"train": [0, 5], "test": [6]}, …}``.
    HDF5: a dataset for each client, or a group with the datasets ``train`` and ``test``,
    plain as h5py writes an array. Raises UserError for anything else.
    """
    with untrusted_files.refuse_unreadable(path, "clients' lists of samples"):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        is_hdf5 = content.startswith(MAGIC)
        listed = _read_hdf5(content) if is_hdf5 else untrusted_files.parsed(content)
        if isinstance(listed, dict) and set(listed) in ({"train", "test"}, set()):
            raise Damaged("it must hold clients by their names")
        by_client = untrusted_files.checked(listed, dict[str, list[int] | Apart])
        held = []
        for name, own in by_client.items():
            if isinstance(own, list):
                held.append(Held(name, _sort_samples(name, own)))
                continue
            train = _sort_samples(name, own["train"])
            held.append(Held(name, train, _sort_samples(name, own["test"])))
        if len({client.test is None for client in held}) > 1:
            raise Damaged("some clients have one list, others 'train' and 'test'")
    return held


def _read_hdf5(content: bytes) -> dict[str, Any]:
    """Return the lists in an HDF5 file, nested as in JSON. Raises Damaged."""
    arrays, _ = hdf5.decode(content)
    by_client: dict[str, Any] = {}
    for place, array in sorted(arrays.items()):
        name, _, part = place.rpartition("/")
        if name and part in ("train", "test"):
            by_client.setdefault(name, {})[part] = array.tolist()
        else:
            by_client[place] = array.tolist()
    return by_client


def _sort_samples(name: str, numbers: list[int]) -> np.ndarray:
    """Return sample numbers ascending, int64. Raises Damaged where one stands twice."""
    samples = np.sort(np.array(numbers, np.int64))
    repeated = samples[1:][samples[1:] == samples[:-1]]
    if len(repeated):
        raise Damaged(f"client '{name}' has sample {repeated[0]} twice")
    return samples


def _refuse_impossible(held: list[Held], samples: int, where: str) -> None:
    """Raise UserError for a client with a number that is no sample's, or with a sample
    in both its lists.
    """
    for client in held:
        tests = client.train[:0] if client.test is None else client.test
        listed = np.concatenate([client.train, tests])
        outside = listed[(listed < 0) | (listed >= samples)]
        if len(outside):
            raise UserError(
                f"{where}: client '{client.name}' has sample {outside[0]}; the data set's are 0 … "
                f"{samples - 1}"
            )
        in_both = np.intersect1d(client.train, tests)
        if len(in_both):
            raise UserError(
                f"{where}: client '{client.name}' has sample {in_both[0]} to train and to test on"
            )


def _describe_uneven(held: list[Held], samples: int, where: str) -> list[str]:
    """Note the samples of the data set that several natural clients hold, or none of
    them.
    """
    lists = [client.train for client in held]
    lists += [client.test for client in held if client.test is not None]
    holders = np.bincount(np.concatenate(lists), minlength=samples)
    notes = []
    for whom, is_so in (("several clients", holders > 1), ("no client", holders == 0)):
        if is_so.any():
            notes.append(
                f"{where}: {is_so.sum():,} of {samples:,} samples are held by {whom}"
            )
    return notes


plugin = ByClient
