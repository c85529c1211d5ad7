"""Identically distributed clients: the samples in random order, dealt out in nearly
equal shares.

The numbers of two clients' samples differ by at most one.
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
