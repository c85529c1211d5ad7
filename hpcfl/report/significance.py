"""Which differences are larger than the noise: paired tests of everything against
everything else.

Two methods that were run with the same partition are compared on each client by itself,
so that differences among clients do not hide a difference between methods. Wilcoxon's
signed-rank test is used because it assumes no normal distribution. With many tests at
once some p-values are small by chance alone; Holm's correction accounts for that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

# A difference with a corrected p-value below this counts as larger than the noise.
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
        """How many clients each test compares."""
        return int(self.values.shape[1])

    def mean(self, name: str) -> float:
        """The mean over pairs of what was compared of ``name``."""
        row = self.names.index(name)
        return float(self.values[row].mean())

    def between(self, name: str, other: str) -> float:
        """The corrected p-value of two names."""
        row = self.names.index(name)
        column = self.names.index(other)
        return float(self.p[row, column])


def compare(values: Mapping[str, np.ndarray]) -> Comparison:
    """Compare each pair of names.

    Args:
        values: By name finite numbers ``[pairs]``. Numbers at the same position are
            those of the same client in the same partition.
    """
    from scipy.stats import wilcoxon  # takes a second to import

    names = list(values)
    numbers = np.stack(list(values.values()))
    name_pairs = list(combinations(range(len(names)), 2))
    uncorrected = np.ones(len(name_pairs))
    for test, (i, j) in enumerate(name_pairs):
        differences = numbers[i] - numbers[j]
        # The test is undefined where all differences are 0; then p is 1.
        if differences.any():
            uncorrected[test] = wilcoxon(differences).pvalue
    corrected = holm(uncorrected)
    p = np.ones((len(names), len(names)))
    for test, (i, j) in enumerate(name_pairs):
        p[i, j] = corrected[test]
        p[j, i] = corrected[test]
    return Comparison(names, numbers, p)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction of p-values ``[n]``.

    The chance that at least one difference is called larger than the noise although it
    is not stays below the level.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J.
    Statist. 6 (1979).
    """
    order = np.argsort(p, kind="stable")
    # For each test how many tests have a p-value at least as large.
    remaining = len(p) - np.arange(len(p))
    scaled = remaining * p[order]
    steps = np.minimum(1, scaled)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(steps)
    return corrected
