"""Natural clients: each holds the samples that the data, or a file of lists, say are
its own.

A writer's digits or a role's lines, for example. Client numbers follow the order in
which the data name the clients. Where the data keep test samples apart, these are a
client's test samples; else they are cut as in other schemes, a share ``train`` for
training. Where the data keep whole clients apart for testing, as LEAF's split by users
does, these are the clients of ``[newcomers]``, and every client's samples are cut.
"""

from dataclasses import replace

import numpy as np
from pydantic import Field

from hpcfl.data import owner_lists
from hpcfl.data.datasets import Dataset, Held
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

    def draw_from(self, dataset: Dataset) -> Draw:
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


def _uneven(held: list[Held], samples: int, where: str) -> list[str]:
    """Note the samples of the data set that several natural clients hold, or none of
    them.
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
