"""Clients of different sizes: how many samples each holds follows a law, and which
classes they are of does not depend on it (heterogeneity.md H5).

``lognormal`` is FedDyn's (Acar et al., ICLR 2021, ``unbalanced_sgm``), ``dirichlet``
that of NIID-Bench (Li et al., ICDE 2022, ``iid-diff-quantity``), the last three are
Flower's size partitioners. Sizes are rounded by the largest remainder to the number of
all samples; FedDyn takes what is too much from the first client that has enough, and
NIID-Bench cuts off cumulative shares.
"""

from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Assignment, MergedScheme, round_down
from hpcfl.data.partitions.dirichlet import CAP, by_class
from hpcfl.errors import UserError
from hpcfl.rows import randomness


class Quantity(MergedScheme):
    by_number = True
    scheme: str = "quantity"
    law: Literal[
        "lognormal", "dirichlet", "power", "linear", "square", "exponential"
    ] = Field(
        "lognormal",
        description="sizes in proportion to exp(sigma·z), z normal; Dirichlet shares; (i + 1)^−a "
        "of client i; i + 1; (i + 1)²; e^i",
    )
    sigma: float = Field(0.3, ge=0, le=20, description="of lognormal")
    beta: float = Field(0.5, gt=0, description="concentration of dirichlet")
    a: float = Field(1.0, ge=0, le=100, description="exponent of power")
    labels: Literal["iid", "dirichlet"] = Field(
        "iid",
        description="a client's classes: those of a random draw from all samples, or in "
        "Dirichlet proportions of its own",
    )
    label_beta: float = Field(
        0.3,
        gt=0,
        description="concentration of a client's classes, labels = 'dirichlet'",
    )
    least: PositiveInt = Field(
        10, description="samples that each client has at least; dirichlet is redrawn"
    )

    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        attempts = 1
        sizes = self._draw_sizes(generator, len(labels))
        while self.law == "dirichlet" and sizes.min() < self.least and attempts < CAP:
            sizes = self._draw_sizes(generator, len(labels))
            attempts += 1
        if sizes.min() < self.least:
            raise UserError(
                f"partition.law = '{self.law}': a client has {sizes.min()} of {len(labels)} "
                f"samples, at least partition.least = {self.least} are asked for; take fewer "
                "clients, a flatter law or a smaller least"
            )
        if self.labels == "dirichlet":
            return Assignment(
                self._by_class(labels, classes, sizes, generator), attempts
            )
        order = generator.permutation(len(labels))
        return Assignment(np.split(order, np.cumsum(sizes)[:-1]), attempts)

    def _draw_sizes(self, generator: np.random.Generator, total: int) -> np.ndarray:
        """Draw the sizes of the clients, which sum to ``total``."""
        weights = self.weights(generator)
        return round_down(weights / weights.sum() * total, total)

    def weights(self, generator: np.random.Generator) -> np.ndarray:
        """Return numbers in proportion to the clients' sizes, float64 [clients]."""
        place = np.arange(1, self.clients + 1, dtype=np.float64)
        match self.law:
            case "lognormal":
                draws = [
                    randomness.generator(self.seed, "size", client).standard_normal()
                    for client in range(self.clients)
                ]
                weights = np.exp(self.sigma * np.array(draws))
            case "dirichlet":
                weights = generator.dirichlet(np.full(self.clients, self.beta))
            case "power":
                weights = place**-self.a
            case "linear":
                weights = place
            case "square":
                weights = place**2
            case "exponential":
                weights = np.exp(place - self.clients)
        return weights

    def _by_class(
        self,
        labels: np.ndarray,
        classes: int,
        sizes: np.ndarray,
        generator: np.random.Generator,
    ) -> list[np.ndarray]:
        """Deal out each client's samples, classes in its own proportions while they
        last.

        Samples are dealt out one by one, to clients in random order, so that it is not
        always the same ones which get what is left.
        """
        pools = [generator.permutation(pool) for pool in by_class(labels, classes)]
        left = np.array([len(pool) for pool in pools])
        proportions = [
            randomness.generator(self.seed, "classes", client).dirichlet(
                np.full(classes, self.label_beta)
            )
            for client in range(self.clients)
        ]
        held: list[list[int]] = [[] for _ in range(self.clients)]
        turns = generator.permutation(np.repeat(np.arange(self.clients), sizes))
        draws = generator.random(len(turns))
        for client, draw in zip(turns.tolist(), draws.tolist(), strict=True):
            possible = np.where(left > 0, proportions[client], 0)
            if not possible.sum():
                possible = left.astype(np.float64)
            upto = possible.cumsum()
            k = int(np.searchsorted(upto, draw * upto[-1], side="right"))
            left[k] -= 1
            held[client].append(int(pools[k][left[k]]))
        return [np.array(samples, np.int64) for samples in held]


plugin = Quantity
