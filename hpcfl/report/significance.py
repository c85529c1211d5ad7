"""Which differences are larger than the noise: paired tests of everything against
everything else.

The clients of a run are the pairs: two methods that were run with the same partition
are compared on each client by itself, so that it does not matter how different clients
are. Wilcoxon's signed-rank test asks for no normal distribution. Many tests at once
find something by chance alone, which Holm's correction prevents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

# of a corrected p-value, below which a difference counts as larger than the noise
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """All pairs among n names.

    Attributes:
        names: What was compared.
        values: ``[n, pairs]``, the numbers that were compared.
        p: ``[n, n]``, Holm's corrected p-values of two-sided tests; 1 on the diagonal.
    """

    names: list[str]
    values: np.ndarray
    p: np.ndarray

    @property
    def pairs(self) -> int:
        return int(self.values.shape[1])

    def mean(self, name: str) -> float:
        return float(self.values[self.names.index(name)].mean())

    def between(self, name: str, other: str) -> float:
        """The corrected p-value of two names."""
        return float(self.p[self.names.index(name), self.names.index(other)])


def compare(values: Mapping[str, np.ndarray]) -> Comparison:
    """Compare each pair of names.

    values: by name finite numbers ``[pairs]``, at the same position of the same client
        in the same partition.
    """
    from scipy.stats import wilcoxon  # takes a second to import

    names = list(values)
    numbers = np.stack(list(values.values()))
    pairs = list(combinations(range(len(names)), 2))
    uncorrected = np.ones(len(pairs))
    for position, (i, j) in enumerate(pairs):
        differences = numbers[i] - numbers[j]
        if differences.any():
            uncorrected[position] = wilcoxon(differences).pvalue
    p = np.ones((len(names), len(names)))
    for (i, j), corrected in zip(pairs, holm(uncorrected), strict=True):
        p[i, j] = p[j, i] = corrected
    return Comparison(names, numbers, p)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction of p-values ``[n]``: the chance to find any wrongly
    stays below the level.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J.
    Statist. 6 (1979).
    """
    order = np.argsort(p, kind="stable")
    remaining = len(p) - np.arange(len(p))  # tests with a p-value at least as large
    steps = np.minimum(1, remaining * p[order])
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(steps)
    return corrected
