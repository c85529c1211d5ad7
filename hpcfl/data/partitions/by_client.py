"""Natural clients: each holds the samples that the data, or a file of lists, say are
its own.

A writer's digits or a role's lines, for example. Client numbers follow the order in
which the data name the clients. Where the data keep test samples apart, these are a
client's test samples; else they are cut as in other schemes, a share ``train`` for
training.
"""

from dataclasses import replace

import numpy as np
from pydantic import Field

from hpcfl.data import owner_lists
from hpcfl.data.datasets import Dataset
from hpcfl.data.owners import Held
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness


class ByClient(Scheme):
    scheme: str = "by-client"
    lists: str | None = Field(
        None,
        description="JSON or HDF5 file with each client's sample numbers; "
        "default: the clients that the data set names",
    )

    def of(self, dataset: Dataset) -> Draw:
        if self.lists is not None:
            held = owner_lists.read(self.lists)
            _refuse_impossible(held, len(dataset.y), self.lists)
            draw = self._drawn(held, self.lists)
            return replace(
                draw, notes=[*draw.notes, *_uneven(held, len(dataset.y), self.lists)]
            )
        if dataset.owners is None:
            has = (
                f"; it has {', '.join(map(repr, dataset.unread))}"
                if dataset.unread
                else ""
            )
            raise UserError(
                f"partition.scheme = 'by-client': '{dataset.name}' does not say whose its "
                "samples are; set partition.lists, or bring data that do (an array 'client' in "
                f"an npz file{has}; a column 'client', or data.client, of csv, parquet or "
                "huggingface; npz-folders; leaf; pfllib)"
            )
        return self._drawn(
            dataset.owners.held(dataset.official_test), f"'{dataset.name}'"
        )

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        raise UserError(
            "partition.scheme = 'by-client' cannot be drawn from labels alone"
        )

    def _drawn(self, held: list[Held], where: str) -> Draw:
        """As many clients as are asked for: all, or some that are drawn at random, with
        the seed.

        where: what names the clients, for errors. Raises UserError where it names too
        few.
        """
        if len(held) < self.clients:
            raise UserError(
                f"partition.clients = {self.clients}: {where} has only {len(held)} clients"
            )
        chosen = np.sort(
            randomness.permutation(len(held), self.seed, "clients")[: self.clients]
        )
        notes = []
        if self.clients < len(held):
            notes.append(
                f"{self.clients} of the {len(held):,} clients of {where} take part, drawn with partition.seed"
            )
        trains = []
        tests = []
        names = []
        for number, position in enumerate(chosen.tolist()):
            client = held[position]
            train, test = self._parts(number, client, where)
            trains.append(train)
            tests.append(test)
            names.append(client.name)
        return Draw(trains, tests, notes=notes, names=names)

    def _parts(
        self, number: int, client: Held, where: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """The training and the test samples of a natural client, which is client
        ``number`` of the run.
        """
        train = client.train
        test = client.test
        if test is None:
            train, test = self.cut(number, client.train)
        if not len(train) or not len(test):
            raise UserError(
                f"{where}: client '{client.name}' has {len(train)} samples to train and {len(test)} "
                "to test on, it needs at least one of each; leave such clients out"
            )
        return train, test


def _refuse_impossible(held: list[Held], samples: int, where: str) -> None:
    """Raises UserError for a client with a number that is no sample's, or with a sample
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


def _uneven(held: list[Held], samples: int, where: str) -> list[str]:
    """Notes on samples of the data set that several of the natural clients hold, and on
    those of nobody.
    """
    lists = []
    for client in held:
        lists.append(client.train)
        if client.test is not None:
            lists.append(client.test)
    holders = np.bincount(np.concatenate(lists), minlength=samples)
    counts = {
        "several clients": int((holders > 1).sum()),
        "no client": int((holders == 0).sum()),
    }
    notes = []
    for whom, count in counts.items():
        if count:
            notes.append(
                f"{where}: {count:,} of {samples:,} samples are held by {whom}"
            )
    return notes


plugin = ByClient
