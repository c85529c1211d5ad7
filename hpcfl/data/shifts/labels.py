"""Permuted labels: each group permutes the class numbers, y → σ(y) (heterogeneity.md
H2).

Sattler et al., "Clustered federated learning", TNNLS 2020: CIFAR-10, 20 clients in four
groups. FedRC (Guo et al., ICML 2024) uses y, K − 1 − y and (y + 1) mod K: ``how =
["reverse", "shift"]``. FedDrift (Jothimurugesan et al., AISTATS 2023) swaps pairs. The
first group keeps its labels. On balanced data with K shifted groups the accuracy of any
single model is at most 1/K.
"""

from typing import Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from hpcfl.data.shifts.base import Concept, Facts, Shift

How = Literal["shift", "reverse", "random", "swap"]


class Labels(Shift):
    kind: str = "labels"
    how: How | list[How] = Field(
        "shift",
        description="shift: (y + g) mod K in group g; reverse: K − 1 − y; random: a permutation "
        "per group; swap: pairs; groups of several kinds follow each other",
    )
    groups: int = Field(
        2, ge=2, le=1000, description="number of groups of shift and random, from 0"
    )
    swaps: list[list[NonNegativeInt]] = Field(
        default_factory=list,
        description="pairs of classes swapped in each group after the first: [[1, 2], [3, 4]]",
    )

    untouched = "y"
    readers = {"how": {"shift": ("groups",), "random": ("groups",), "swap": ("swaps",)}}

    def concepts(self, facts: Facts) -> list[Concept]:
        listed = [self.how] if isinstance(self.how, str) else self.how
        made = {
            "shift": self._shift,
            "reverse": self._reverse,
            "random": self._permute,
            "swap": self._swap,
        }
        concepts = [Concept(self.untouched)]
        for how in listed:
            concepts += made[how](facts)
        return concepts

    def _shift(self, facts: Facts) -> list[Concept]:
        classes = np.arange(facts.classes)
        if self.groups > facts.classes:
            raise facts.make_error(
                "groups", f"{self.groups} must be at most {facts.classes}, the classes"
            )
        return [
            Concept(f"y + {group}", labels=(classes + group) % facts.classes)
            for group in range(1, self.groups)
        ]

    def _reverse(self, facts: Facts) -> list[Concept]:
        return [Concept("K − 1 − y", labels=np.arange(facts.classes)[::-1].copy())]

    def _permute(self, facts: Facts) -> list[Concept]:
        concepts = []
        for group in range(1, self.groups):
            permutation = facts.generator("labels", group).permutation(facts.classes)
            concepts.append(Concept(f"permuted {group}", labels=permutation))
        return concepts

    def _swap(self, facts: Facts) -> list[Concept]:
        if not self.swaps:
            raise facts.make_error("swaps", "how = 'swap' needs pairs, as in [[1, 2]]")
        return [self._swap_pairs(classes, facts) for classes in self.swaps]

    def _swap_pairs(self, classes: list[int], facts: Facts) -> Concept:
        """Return the concept that swaps the first class with the second, the third with
        the fourth, and so on.
        """
        different = len(set(classes)) == len(classes)
        if not classes or len(classes) % 2 or not different:
            raise facts.make_error(
                "swaps", f"{classes} must be pairs of different classes"
            )
        if max(classes) >= facts.classes:
            raise facts.make_error(
                "swaps", f"{classes}: the data set has only {facts.classes} classes"
            )
        permutation = np.arange(facts.classes)
        permutation[classes[::2]] = classes[1::2]
        permutation[classes[1::2]] = classes[::2]
        pairs = zip(classes[::2], classes[1::2], strict=True)
        names = [f"{one} ↔ {other}" for one, other in pairs]
        return Concept(", ".join(names), labels=permutation)


plugin = Labels
