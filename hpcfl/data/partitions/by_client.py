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
                f"an npz file{has}; npz-folders; leaf)"
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
        notes = (
            []
            if self.clients == len(held)
            else [
                f"{self.clients} of the {len(held):,} clients of {where} take part, drawn with partition.seed"
            ]
        )
        parts = [
            self._parts(number, held[position], where)
            for number, position in enumerate(chosen.tolist())
        ]
        return Draw(
            [train for train, _ in parts],
            [test for _, test in parts],
            notes=notes,
            names=[held[position].name for position in chosen.tolist()],
        )

    def _parts(
        self, number: int, one: Held, where: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """The training and the test samples of a natural client, which is client
        ``number`` of the run.
        """
        train, test = (
            self.cut(number, one.train) if one.test is None else (one.train, one.test)
        )
        if not len(train) or not len(test):
            raise UserError(
                f"{where}: client '{one.name}' has {len(train)} samples to train and {len(test)} "
                "to test on, it needs at least one of each; leave such clients out"
            )
        return train, test


def _refuse_impossible(held: list[Held], samples: int, where: str) -> None:
    """Raises UserError for a client with a number that is no sample's, or with a sample
    in both its lists.
    """
    for one in held:
        tests = one.train[:0] if one.test is None else one.test
        listed = np.concatenate([one.train, tests])
        if len(wrong := listed[(listed < 0) | (listed >= samples)]):
            raise UserError(
                f"{where}: client '{one.name}' has sample {wrong[0]}; the data set's are 0 … "
                f"{samples - 1}"
            )
        if len(both := np.intersect1d(one.train, tests)):
            raise UserError(
                f"{where}: client '{one.name}' has sample {both[0]} to train and to test on"
            )


def _uneven(held: list[Held], samples: int, where: str) -> list[str]:
    """Notes on samples of the data set that several of the natural clients hold, and on
    those of nobody.
    """
    listed = np.concatenate(
        [part for one in held for part in (one.train, one.test) if part is not None]
    )
    holders = np.bincount(listed, minlength=samples)
    counts = {
        "several clients": int((holders > 1).sum()),
        "no client": int((holders == 0).sum()),
    }
    return [
        f"{where}: {count:,} of {samples:,} samples are held by {whom}"
        for whom, count in counts.items()
        if count
    ]


plugin = ByClient
