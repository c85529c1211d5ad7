"""Natural clients: the data set, or a file with lists, assigns samples to clients.

Examples are the digits of one writer and the lines of one role. Clients are numbered in
the order of the data set. If the data set separates test samples, these become the
clients' test samples; else each client's samples are split, a share ``train`` for
training. If the data set reserves whole clients for testing, as in LEAF's split by
users, these become the clients of ``[newcomers]``, and each client's samples are split.
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
MAGIC = b"\x89HDF\r\n\x1a\n"  # first bytes of an HDF5 file


class Apart(TypedDict):
    """Training and test samples of a client in a file."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    train: list[int]
    test: list[int]


class ByClient(Scheme):
    scheme: str = "by-client"
    lists: str | None = Field(
        None,
        description="JSON or HDF5 file with each client's sample numbers; "
        "default: the clients of the data set",
    )

    def draw_from(self, dataset: Dataset) -> Draw:
        if self.lists is not None:
            held = read_lists(self.lists)
            _refuse_impossible(held, len(dataset.y), self.lists)
            draw = self._draw_clients(held, self.lists)
            notes = _describe_uneven(held, len(dataset.y), self.lists)
            if dataset.official_test:
                trained = len(dataset.y) - dataset.official_test
                notes.append(
                    f"{self.lists}: sample numbers count the {trained:,} training samples of "
                    f"'{dataset.name}' first, then its {dataset.official_test:,} test samples"
                )
            return replace(draw, notes=[*draw.notes, *notes])
        if dataset.owners is None:
            has = ", ".join(map(repr, dataset.unread))
            has = f"; it has {has}" if has else ""
            raise UserError(
                f"partition.scheme = 'by-client': '{dataset.name}' does not name the clients of "
                "its samples; set partition.lists, or use data with clients (an array 'client' in "
                f"an npz file{has}; a column 'client', or data.client, of csv, parquet or "
                "huggingface; data.clients or data.owners of image-folder; npz-folders; "
                "leaf; pfllib)"
            )
        held = dataset.owners.list_held(dataset.official_test)
        where = f"'{dataset.name}'"
        if dataset.owners.unseen:
            return self._draw_with_unseen(held, dataset.owners.unseen, where)
        return self._draw_clients(held, where)

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        raise UserError(
            "partition.scheme = 'by-client' needs the clients of samples, not only labels"
        )

    def _draw_clients(self, held: list[Held], where: str) -> Draw:
        """Draw ``partition.clients`` clients at random, or return all.

        Args:
            held: samples of each natural client.
            where: file or data set of the clients, for errors.

        Raises:
            UserError: There are too few clients.
        """
        if len(held) < self.clients:
            raise UserError(
                f"partition.clients = {self.clients}: {where} has only {len(held)} clients"
            )
        chosen = self._choose(len(held), self.clients, "clients")
        notes = []
        if self.clients < len(held):
            notes.append(
                f"{self.clients} of {len(held):,} clients of {where} take part, drawn with "
                "partition.seed"
            )
        return self._split_clients(
            [held[position] for position in chosen], where, notes
        )

    def _draw_with_unseen(self, held: list[Held], unseen: int, where: str) -> Draw:
        """Draw clients from the training clients, and newcomers from the unseen
        clients.

        Args:
            held: samples of each natural client; unseen clients come last.
            unseen: number of clients reserved for testing.
            where: file or data set of the clients, for errors.

        Raises:
            UserError: There are too few of either, or no newcomers.
        """
        trained = len(held) - unseen
        clients = self.clients - self.newcomers
        if not 0 < self.newcomers <= unseen or clients > trained:
            raise UserError(
                f"partition.scheme = 'by-client': {where} is split by users into {trained} "
                f"training users and {unseen} test users; set "
                f"newcomers.clients = {min(unseen, self.newcomers or unseen)} (at most "
                f"{unseen}), to be scored after the last round, and partition.clients = "
                f"{min(clients, trained)} (at most {trained})"
            )
        seen = self._choose(trained, clients, "clients")
        others = self._choose(unseen, self.newcomers, "newcomers")
        chosen = [held[position] for position in (*seen, *(trained + others))]
        note = (
            f"{where} is split by users: {clients} of its {trained:,} training users take "
            f"part, {self.newcomers} of its {unseen:,} test users are the newcomers, and "
            "partition.train splits the samples of each"
        )
        return self._split_clients(chosen, where, [note])

    def _choose(self, clients: int, count: int, purpose: str) -> np.ndarray:
        """Return the numbers of drawn clients, ascending.

        Args:
            clients: number of clients to draw from.
            count: number of clients drawn.
            purpose: part of the random key.
        """
        order = randomness.permutation(clients, self.seed, purpose)
        return np.sort(order[:count])

    def _split_clients(self, clients: list[Held], where: str, notes: list[str]) -> Draw:
        """Return the training and test samples of the clients that take part."""
        trains = []
        tests = []
        if clients[0].test is not None:
            notes = [*notes, *self.note_unread_share()]
        for number, client in enumerate(clients):
            train, test = self._split_client(number, client, where)
            trains.append(train)
            tests.append(test)
        names = [client.name for client in clients]
        return Draw(trains, tests, notes=notes, names=names)

    def _split_client(
        self, number: int, client: Held, where: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the training and test samples of a natural client.

        Args:
            number: number of the client in the run.
            client: samples of the client.
            where: file or data set of the clients, for errors.
        """
        train = client.train
        test = client.test
        if test is None:
            train, test = self.split_samples(number, client.train)
        if not len(train) or not len(test):
            raise UserError(
                f"{where}: client '{client.name}' has {len(train)} training samples and "
                f"{len(test)} test samples, but needs at least one of each; remove such clients "
                "from the data"
            )
        return train, test


def read_lists(path: str) -> list[Held]:
    """Read each client's samples from a user's file.

    JSON: ``{"ann": [0, 5, 6], …}``, or ``{"ann": {"train": [0, 5], "test": [6]}, …}``,
    with clients in the order of the file. HDF5: a dataset for each client, or a group
    with the datasets ``train`` and ``test``, as h5py writes arrays by default, with
    clients sorted by name. Raises UserError for other content.
    """
    with untrusted_files.refuse_unreadable(path, "clients' lists of samples"):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        is_hdf5 = content.startswith(MAGIC)
        listed = _read_hdf5(content) if is_hdf5 else untrusted_files.parsed(content)
        if isinstance(listed, dict) and set(listed) in ({"train", "test"}, set()):
            raise Damaged("it must map names of clients to lists of samples")
        by_client = untrusted_files.checked(listed, dict[str, list[int] | Apart])
        held = []
        for name, own in by_client.items():
            if isinstance(own, list):
                held.append(Held(name, _sort_samples(name, own)))
                continue
            train = _sort_samples(name, own["train"])
            held.append(Held(name, train, _sort_samples(name, own["test"])))
        if len({client.test is None for client in held}) > 1:
            raise Damaged(
                "some clients have one list, others 'train' and 'test'; use one format"
            )
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
    """Return sample numbers ascending, int64. Raises Damaged if one occurs twice."""
    samples = np.sort(np.array(numbers, np.int64))
    repeated = samples[1:][samples[1:] == samples[:-1]]
    if len(repeated):
        raise Damaged(f"client '{name}' has sample {repeated[0]} twice")
    return samples


def _refuse_impossible(held: list[Held], samples: int, where: str) -> None:
    """Raise UserError for sample numbers outside the data set, and for samples in both
    lists of a client.

    Args:
        held: samples of each client.
        samples: number of samples of the data set.
        where: file of the lists.
    """
    for client in held:
        tests = client.train[:0] if client.test is None else client.test
        listed = np.concatenate([client.train, tests])
        outside = listed[(listed < 0) | (listed >= samples)]
        if len(outside):
            raise UserError(
                f"{where}: client '{client.name}' has sample {outside[0]}, but the data set has "
                f"samples 0 … {samples - 1}"
            )
        in_both = np.intersect1d(client.train, tests)
        if len(in_both):
            raise UserError(
                f"{where}: client '{client.name}' has sample {in_both[0]} in 'train' and in 'test'"
            )


def _describe_uneven(held: list[Held], samples: int, where: str) -> list[str]:
    """Return notes on samples that several clients hold, and samples that no client
    holds.
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
