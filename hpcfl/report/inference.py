"""Paired differences to a reference: intervals over partitions, tests and corrections.

The clients of one partition share its draw, so they are no independent witnesses of a
difference between methods: a new federation is a new partition, with new clients in it.
The bootstrap therefore resamples partitions, and within each of them its clients:
Davison & Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8,
for data in groups, with both stages drawn with replacement.

Intervals are studentised and symmetric (ibid., section 5.2.1): the spread of the partitions'
means is estimated anew in each resample, because with the five to twenty partitions
that one can afford plain percentiles are too narrow.
``tests/report/test_inference.py`` counts how often intervals of invented partitions
hold the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

# A difference with a corrected p-value below this counts as larger than the noise.
LEVEL = 0.05
RESAMPLES = 4999
POWER = 0.8  # the chance with which a difference is to be seen
MOST_PARTITIONS = 10_000  # that are looked at for ``partitions_needed``
SEED = 0  # the same numbers make the same interval


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences with its interval of 95 %.

    Attributes:
        mean: Over partitions, of each the mean over its clients.
        partitions: How many there are.
        half: Half of the interval's width; NaN for fewer than two partitions.
        narrow: Half of the width of the interval of 90 %, which lies within an
            equivalence margin where two one-sided tests at 5 % say that the difference
            does (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987).
        p: The two-sided p-value; NaN for fewer than two partitions.
        deviation: The sample standard deviation of the partitions' means.
    """

    mean: float
    partitions: int
    half: float = math.nan
    narrow: float = math.nan
    p: float = math.nan
    deviation: float = math.nan

    def within(self, margin: float) -> bool:
        """Tell whether the difference is smaller than ``margin`` at the level of 5 %."""
        return abs(self.mean) + self.narrow < margin


def interval(differences: Sequence[np.ndarray]) -> Interval:
    """Return the mean difference over partitions with its interval.

    Args:
        differences: Of each partition the finite differences ``[n_r]`` of its clients,
            at least one.
    """
    count = len(differences)
    means = np.array([of_partition.mean() for of_partition in differences])
    mean = float(means.mean())
    if count < 2:
        return Interval(mean, count)
    deviation = float(means.std(ddof=1))
    if deviation == 0:  # nothing varies, so nothing has to be estimated
        p = 1.0 if mean == 0 else 0.0
        return Interval(mean, count, half=0.0, narrow=0.0, p=p, deviation=0.0)
    error = deviation / math.sqrt(count)
    ratios = _resampled_ratios(differences, mean)
    if not ratios.any():  # two partitions of clients who agree have no such ratio
        return Interval(mean, count, deviation=deviation)
    half = error * float(np.quantile(ratios, 1 - LEVEL))
    narrow = error * float(np.quantile(ratios, 1 - 2 * LEVEL))
    as_large = int((ratios >= abs(mean) / error).sum())
    p = (1 + as_large) / (1 + len(ratios))
    return Interval(mean, count, half, narrow, p=p, deviation=deviation)


def partitions_needed(deviation: float, difference: float, level: float) -> int | None:
    """Return the number of partitions with which a paired t-test finds a difference.

    Args:
        deviation: The standard deviation of the partitions' differences.
        difference: The true difference, above 0.
        level: Of the two-sided test, in (0, 1).

    Returns:
        The smallest number with which the test has the power ``POWER``, by the
        noncentral t distribution (Cohen, "Statistical Power Analysis", 1988, section 2.4);
        None where more than ``MOST_PARTITIONS`` would be needed.
    """
    from scipy.stats import nct, t

    if deviation == 0:
        return 2
    counts = np.arange(2, MOST_PARTITIONS)
    shift = difference / deviation * np.sqrt(counts)
    threshold = t.isf(level / 2, counts - 1)
    with np.errstate(all="ignore"):  # by which SciPy comes to the right 1
        above = nct.sf(threshold, counts - 1, shift)
        below = nct.cdf(-threshold, counts - 1, shift)
    enough = counts[above + np.nan_to_num(below) >= POWER]
    return int(enough[0]) if len(enough) else None


def _resampled_ratios(differences: Sequence[np.ndarray], mean: float) -> np.ndarray:
    """Return |mean* − mean| over the standard error* of each resample that has one."""
    count = len(differences)
    sizes = np.array([len(of_partition) for of_partition in differences])
    padded = np.zeros((count, sizes.max()))
    for row, of_partition in enumerate(differences):
        padded[row, : len(of_partition)] = of_partition
    generator = np.random.default_rng(SEED)
    drawn_means = np.empty((count, RESAMPLES))
    for drawn in drawn_means:
        partitions = generator.integers(count, size=RESAMPLES)
        drawn_sizes = sizes[partitions][:, None]
        uniform = generator.random((RESAMPLES, padded.shape[1]))
        clients = (uniform * drawn_sizes).astype(np.int64)
        values = padded[partitions[:, None], clients]
        counted = np.arange(padded.shape[1]) < drawn_sizes
        drawn[:] = (values * counted).sum(axis=1) / drawn_sizes[:, 0]
    errors = drawn_means.std(axis=0, ddof=1) / math.sqrt(count)
    known = errors > 0
    ratios: np.ndarray = np.abs(drawn_means.mean(axis=0) - mean)[known] / errors[known]
    return ratios


def signed_rank(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, 1 where all finite
    ``differences`` are 0.

    The test takes the differences as independent.
    """
    from scipy.stats import wilcoxon  # takes a second to import

    known = differences[np.isfinite(differences)]
    return float(wilcoxon(known).pvalue) if known.any() else 1.0


def correct(p: "pandas.Series[float]") -> "pandas.Series[float]":
    """Correct the p-values that are known by Holm's step-down procedure.

    The chance that at least one difference is called larger than the noise although it
    is not stays below the level.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J.
    Statist. 6 (1979).
    """
    known = p.dropna().sort_values()
    # For each test how many tests have a p-value at least as large.
    remaining = np.arange(len(known), 0, -1)
    return (known * remaining).cummax().clip(upper=1).reindex(p.index)
