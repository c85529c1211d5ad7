"""Natural clients of a data set, such as writers or speakers, where the data name them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Held:
    """The samples of one natural client, ascending: all of them, or with ``test`` those
    that it trains on.

    test: the samples that it is tested on, where the data keep them apart.
    """

    name: str
    train: np.ndarray
    test: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Owners:
    """The natural clients of a data set.

    names: of the clients. of: whose each sample is, a position in ``names``, int64
    [samples]. unseen: how many of the names, at their end, are of clients that the data
    keep for testing: these are for ``[newcomers]`` alone.
    """

    names: tuple[str, ...]
    of: np.ndarray
    unseen: int = 0

    def held(self, official_test: int) -> list[Held]:
        """Return each client's samples, of which the last ``official_test`` of all are
        for testing, if there are; clients that are ``unseen`` have no further split.
        """
        order = np.argsort(self.of, kind="stable")
        counts = np.bincount(self.of, minlength=len(self.names))
        lists = np.split(order, np.cumsum(counts)[:-1])
        if not official_test or self.unseen:
            return list(map(Held, self.names, lists))
        first = len(self.of) - official_test
        held = []
        for name, samples in zip(self.names, lists, strict=True):
            held.append(Held(name, samples[samples < first], samples[samples >= first]))
        return held


def numbered(owners: np.ndarray) -> Owners:
    """Return the natural clients of samples whose owners are given by number or name,
    in the order of these.
    """
    names, of = np.unique(owners, return_inverse=True)
    return Owners(tuple(map(str, names.tolist())), of)
