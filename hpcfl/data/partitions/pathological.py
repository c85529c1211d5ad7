"""A few classes per client, as in PFLlib, FedALA and cwFedAvg (protocols.md D1).

Clients receive classes in the order of their numbers, so blocks of clients hold the
same classes.
"""

import math

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Assignment, MergedScheme
from hpcfl.errors import UserError


class Pathological(MergedScheme):
    by_number = True
    scheme: str = "pathological"
    classes_per_client: PositiveInt = Field(
        2, description="number of classes per client"
    )

    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        if self.classes_per_client > classes:
            raise UserError(
                f"partition.classes_per_client = {self.classes_per_client}: the data has "
                f"{classes} classes"
            )
        most_takers = math.ceil(self.classes_per_client * self.clients / classes)
        least = self.compute_least_samples(len(labels)) / classes
        chunks: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        unused = []
        for k in range(classes):
            samples = np.flatnonzero(labels == k)
            takers = [
                client
                for client in range(self.clients)
                if len(chunks[client]) < self.classes_per_client
            ][:most_takers]
            if not takers:
                unused.append(f"class {k} ({len(samples)} samples)")
                continue
            sizes = _draw_sizes(
                k, len(samples), len(takers), least=least, generator=generator
            )
            for client, chunk in zip(
                takers, np.split(samples, np.cumsum(sizes)), strict=True
            ):
                chunks[client].append(chunk)
        return Assignment(
            [np.concatenate(held) for held in chunks],
            notes=self._describe_missing(chunks, unused),
        )

    def _describe_missing(
        self, chunks: list[list[np.ndarray]], unused: list[str]
    ) -> list[str]:
        """Return notes on classes without clients, and on clients with too few classes."""
        notes = [f"no client holds {', '.join(unused)}"] if unused else []
        short = [
            client
            for client, held in enumerate(chunks)
            if len(held) < self.classes_per_client
        ]
        if short:  # always the last clients
            notes.append(
                f"clients {short[0]} to {short[-1]} hold only {len(chunks[-1])} of "
                f"{self.classes_per_client} classes"
            )
        return notes


def _draw_sizes(
    k: int,
    samples: int,
    takers: int,
    least: float,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draw the number of samples of a class for each client except the last.

    Numbers are uniform in [max(a/10, least), a), where a is the mean.

    Args:
        k: number of the class.
        samples: number of its samples.
        takers: number of clients that receive the class.
        least: smallest number of samples per client.
        generator: generator of random numbers.

    Returns:
        The numbers, int64 [takers − 1].

    Raises:
        UserError: There are too few samples.
    """
    mean = samples / takers
    # bounds of the integers in that interval
    low = math.ceil(max(mean / 10, least))
    high = math.ceil(mean)
    if mean < 1 or (takers > 1 and low >= high):
        raise UserError(
            f"partition.clients is too large: class {k} has {samples} samples for {takers} "
            f"clients, which need from {max(mean / 10, least):.2f} to less than {mean:.2f} each"
        )
    if takers == 1:
        return np.empty(0, np.int64)
    return generator.integers(low, high, takers - 1)


plugin = Pathological
