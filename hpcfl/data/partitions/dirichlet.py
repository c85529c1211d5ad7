"""Each class spread over the clients in proportions drawn from a Dirichlet distribution, as PFLlib draws it."""

import numpy as np
from pydantic import Field

from hpcfl.data.partitions.base import Assignment, MergedScheme
from hpcfl.errors import UserError

# Small data sets need many: of 1,797 digits, 20 clients and beta 0.1, one draw in a thousand is accepted.
_CAP = 10_000


class Dirichlet(MergedScheme):
    scheme: str = "dirichlet"
    beta: float = Field(0.1, gt=0, description="concentration: the smaller, the fewer classes a client holds")

    def assign(self, labels: np.ndarray, classes: int, generator: np.random.Generator) -> Assignment:
        least = max(2, self.least_samples(len(labels)))  # one sample on each side of the split
        for attempt in range(1, _CAP + 1):
            samples = self._attempt(labels, classes, generator)
            smallest = min(map(len, samples))
            if smallest >= least:
                return Assignment(samples, attempt)
        raise UserError(f"partition.beta = {self.beta}: in {_CAP} attempts never did each of {self.clients} clients "
                        f"get {least} of {len(labels)} samples (the last time one got {smallest}); take fewer clients "
                        "or a larger beta")

    def _attempt(self, labels: np.ndarray, classes: int, generator: np.random.Generator) -> list[np.ndarray]:
        chunks: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        sizes = np.zeros(self.clients, np.int64)
        for k in range(classes):
            samples = generator.permutation(np.flatnonzero(labels == k))
            shares = self._shares(sizes < len(labels) / self.clients, generator)
            cuts = np.floor(np.cumsum(shares) * len(samples)).astype(np.int64)[:-1]  # the last client gets the rest
            for client, chunk in enumerate(np.split(samples, cuts)):
                chunks[client].append(chunk)
                sizes[client] += len(chunk)
        return [np.concatenate(held) for held in chunks]

    def _shares(self, below_mean: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Each client's share of a class, float64 [clients]; a client that holds the mean number gets nothing."""
        for _ in range(_CAP):
            shares = generator.dirichlet(np.full(self.clients, self.beta)) * below_mean
            if shares.sum() > 0:  # for a small beta, the shares of all who may take can underflow to zero
                return shares / shares.sum()
        raise UserError(f"partition.beta = {self.beta} is too small: no client below the mean was drawn in {_CAP} "
                        "attempts")


plugin = Dirichlet
