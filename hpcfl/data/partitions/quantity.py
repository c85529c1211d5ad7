"""Clients of different sizes: sizes follow a law, independently of the class
distribution (heterogeneity.md H5).

``lognormal`` is FedDyn's law (Acar et al., ICLR 2021, ``unbalanced_sgm``),
``dirichlet`` that of NIID-Bench (Li et al., ICDE 2022, ``iid-diff-quantity``); the last
three are Flower's size partitioners. Sizes are rounded by the largest remainder, so
that they sum to the number of samples. The originals differ: FedDyn takes excess
samples from the first client with enough, and NIID-Bench rounds cumulative shares down.
"""

from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.data.partitions.base import Assignment, MergedScheme, round_down
from hpcfl.data.partitions.dirichlet import CAP, group_by_class
from hpcfl.errors import UserError
from hpcfl.rows import randomness

# Positive numbers below this one have fewer digits, so a draw in [0, 1) times such a
# number can round to the number itself.
SMALLEST = np.finfo(np.float64).tiny


class Quantity(MergedScheme):
    by_number = True
    scheme: str = "quantity"
    law: Literal[
        "lognormal", "dirichlet", "power", "linear", "square", "exponential"
    ] = Field(
        "lognormal",
        description="size of client i in proportion to exp(sigma·z), z normal; a Dirichlet share; "
        "(i + 1)^−a; i + 1; (i + 1)²; e^i",
    )
    sigma: float = Field(0.3, ge=0, le=20, description="sigma of lognormal")
    beta: float = Field(0.5, gt=0, description="concentration of dirichlet")
    a: float = Field(1.0, ge=0, le=100, description="exponent of power")
    labels: Literal["iid", "dirichlet"] = Field(
        "iid",
        description="classes of a client: by a random draw from all samples, or in its own "
        "Dirichlet proportions",
    )
    label_beta: float = Field(
        0.3,
        gt=0,
        description="concentration of a client's classes with labels = 'dirichlet'",
    )
    least: PositiveInt = Field(
        10, description="smallest number of samples per client; dirichlet is redrawn"
    )

    readers = {
        "law": {"lognormal": ("sigma",), "dirichlet": ("beta",), "power": ("a",)},
        "labels": {"dirichlet": ("label_beta",)},
    }

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
                f"samples, less than partition.least = {self.least}; use fewer clients, a "
                "flatter law or a smaller least"
            )
        if self.labels == "dirichlet":
            return Assignment(
                self._assign_by_class(labels, classes, sizes, generator), attempts
            )
        order = generator.permutation(len(labels))
        return Assignment(np.split(order, np.cumsum(sizes)[:-1]), attempts)

    def _draw_sizes(self, generator: np.random.Generator, total: int) -> np.ndarray:
        """Draw the sizes of the clients, with sum ``total``."""
        weights = self.draw_weights(generator)
        return round_down(weights / weights.sum() * total, total)

    def draw_weights(self, generator: np.random.Generator) -> np.ndarray:
        """Return numbers proportional to the clients' sizes, float64 [clients]."""
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

    def _assign_by_class(
        self,
        labels: np.ndarray,
        classes: int,
        sizes: np.ndarray,
        generator: np.random.Generator,
    ) -> list[np.ndarray]:
        """Assign samples by each client's class proportions while the classes last.

        Samples are assigned one by one to clients in random order, so that the
        remainders do not always go to the same clients.

        Args:
            labels: class number of each sample.
            classes: number of classes.
            sizes: number of samples of each client.
            generator: generator of random numbers.
        """
        pools = [
            generator.permutation(pool) for pool in group_by_class(labels, classes)
        ]
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
            if possible.sum() < SMALLEST:
                possible = left.astype(np.float64)
            upto = possible.cumsum()
            k = int(np.searchsorted(upto, draw * upto[-1], side="right"))
            left[k] -= 1
            held[client].append(int(pools[k][left[k]]))
        return [np.array(samples, np.int64) for samples in held]


plugin = Quantity
