"""Identically distributed clients: samples in random order are divided into nearly
equal parts.

Sizes of two clients differ by at most one sample.
"""

import numpy as np

from hpcfl.data.partitions.base import Assignment, MergedScheme


class Iid(MergedScheme):
    scheme: str = "iid"

    def assign(
        self, labels: np.ndarray, classes: int, generator: np.random.Generator
    ) -> Assignment:
        return Assignment(
            np.array_split(generator.permutation(len(labels)), self.clients)
        )


plugin = Iid
