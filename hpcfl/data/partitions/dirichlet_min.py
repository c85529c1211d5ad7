"""FedNH's Dirichlet partition: ``dirichlet``'s balanced spread, with a least number of
samples and classes.

Dai et al., AAAI 2023 (protocols.md D3). Only the official training split is dealt out;
every client is tested on the whole official test split. From the third class on, a
client that holds at most one class so far swaps its chunk with that of the last client,
the next such client with the last but one, and so on. After three attempts the last
draw counts, with a note.
"""

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions._dirichlet import by_class, spread
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.errors import UserError
from hpcfl.rows import randomness

_ATTEMPTS = 3


class DirichletMin(Scheme):
    exclusive = True
    scheme: str = "dirichlet-min"
    beta: float = Field(
        0.3,
        gt=0,
        description="concentration: the smaller, the fewer classes a client holds",
    )
    least_samples: PositiveInt = Field(
        10, description="training samples that each client should hold"
    )
    least_classes: PositiveInt = Field(
        2, description="classes that each client should hold"
    )

    def draw(self, labels: np.ndarray, classes: int, official_test: int) -> Draw:
        if not official_test:
            raise UserError(
                f"partition.scheme = '{self.scheme}' tests on the official test split; "
                "this data has none"
            )
        end = len(labels) - official_test
        generator = randomness.generator(self.seed, "partition")
        pools = by_class(labels[:end], classes)
        for attempt in range(1, _ATTEMPTS + 1):
            train = spread(pools, self.clients, self.beta, generator, swap).samples()
            samples = min(map(len, train))
            fewest = min(len(np.unique(labels[held])) for held in train)
            notes = [
                f"after {attempt} draws some client still holds only {samples} samples or "
                f"{fewest} classes"
            ]
            if samples >= self.least_samples and fewest >= self.least_classes:
                notes = []
                break
        test = np.arange(end, len(labels))
        trains = list(map(np.sort, train))
        return Draw(trains, [test] * self.clients, attempt, notes)


def swap(k: int, chunks: list[int], held: np.ndarray) -> list[int]:
    """Return the chunks of class ``k`` after clients with at most one class have
    swapped theirs with the last ones'.

    chunks: their numbers, in the order of the clients that get them.

    held: int64 [clients], how many classes each client holds so far.
    """
    chunks = list(chunks)
    if k >= 2:
        for turn, client in enumerate(np.flatnonzero(held <= 1), start=1):
            chunks[client], chunks[-turn] = chunks[-turn], chunks[client]
    return chunks


plugin = DirichletMin
