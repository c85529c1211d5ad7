"""Confidence intervals, tests and corrections for paired differences to a reference.

The clients of one partition depend on the same draw, so their differences are not
independent. A new federation is a new partition with new clients. The bootstrap
therefore resamples partitions, and then the clients within each of them, both with
replacement (Davison & Hinkley, "Bootstrap Methods and their Application", 1997,
section 3.8).

Intervals are studentised and symmetric (ibid., section 5.2.1): each resample estimates
the standard error of the partitions' means anew. Plain percentile intervals are too
narrow with five to twenty partitions. ``tests/report/test_inference.py`` measures the
coverage of the intervals on simulated partitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

# Level of significance of corrected p-values.
LEVEL = 0.05
RESAMPLES = 4999
POWER = 0.8  # probability of detecting the difference
MOST_PARTITIONS = 10_000  # upper limit of ``count_needed_partitions``
SEED = 0  # fixed, so that equal numbers give equal intervals


@dataclass(frozen=True)
class Interval:
    """The mean of paired differences with its 95 % confidence interval.

    Attributes:
        mean: Mean over partitions of each partition's mean over clients.
        partitions: Number of partitions.
        half: Half-width of the interval; NaN for fewer than two partitions.
        narrow: Half-width of the 90 % interval. This interval lies within an equivalence
            margin if two one-sided tests at 5 % find the difference within the margin
            (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987).
        p: Two-sided p-value; NaN for fewer than two partitions.
        deviation: Sample standard deviation of the partitions' means.
    """

    mean: float
    partitions: int
    half: float = math.nan
    narrow: float = math.nan
    p: float = math.nan
    deviation: float = math.nan

    def is_within(self, margin: float) -> bool:
        """Return whether the difference is within ± ``margin`` at the level of 5 %."""
        return abs(self.mean) + self.narrow < margin


def estimate_interval(differences: Sequence[np.ndarray]) -> Interval:
    """Return the mean difference over partitions with its confidence interval.

    Args:
        differences: Finite differences of the clients of each partition, ``[n_r]``; at
            least one partition.
    """
    count = len(differences)
    means = np.array([of_partition.mean() for of_partition in differences])
    mean = float(means.mean())
    if count < 2:
        return Interval(mean, count)
    deviation = float(means.std(ddof=1))
    if deviation == 0:  # equal means need no bootstrap
        p = 1.0 if mean == 0 else 0.0
        return Interval(mean, count, half=0.0, narrow=0.0, p=p, deviation=0.0)
    ratios = _resample_ratios(differences, mean)
    if not ratios.any():  # e.g. two partitions without variation between clients
        return Interval(mean, count, deviation=deviation)
    error = deviation / math.sqrt(count)
    observed = abs(mean) / error
    as_large = int(np.count_nonzero(ratios >= observed))
    quantiles = np.quantile(ratios, [1 - LEVEL, 1 - 2 * LEVEL])
    half, narrow = (error * quantiles).tolist()
    return Interval(
        mean=mean,
        partitions=count,
        half=half,
        narrow=narrow,
        p=(1 + as_large) / (1 + len(ratios)),
        deviation=deviation,
    )


def count_needed_partitions(
    deviation: float, difference: float, level: float
) -> int | None:
    """Return the number of partitions with which a paired t-test finds a difference.

    Args:
        deviation: Standard deviation of the partitions' differences.
        difference: True difference, above 0.
        level: Level of the two-sided test, in (0, 1).

    Returns:
        Smallest number of partitions at which the test has the power ``POWER``, by the
        noncentral t distribution (Cohen, "Statistical Power Analysis", 1988, section 2.4);
        None if more than ``MOST_PARTITIONS`` are needed.
    """
    from scipy.stats import nct, t

    if deviation == 0:
        return 2
    counts = np.arange(2, MOST_PARTITIONS + 1)
    freedom = counts - 1
    shift = difference / deviation * np.sqrt(counts)
    threshold = t.isf(level / 2, freedom)
    with np.errstate(all="ignore"):  # SciPy warns and still returns the limit 1
        above = nct.sf(threshold, freedom, shift)
        below = nct.cdf(-threshold, freedom, shift)
    power = above + np.nan_to_num(below)
    enough = counts[power >= POWER]
    return int(enough[0]) if len(enough) else None


def _resample_ratios(differences: Sequence[np.ndarray], mean: float) -> np.ndarray:
    """Return |mean* − mean| / (standard error)* of each resample with a positive error.

    Args:
        differences: Differences of the clients of each partition, ``[n_r]``.
        mean: Mean of the original sample.
    """
    count = len(differences)
    padded, sizes = _pad_clients(differences)
    generator = np.random.default_rng(SEED)
    means = np.empty((count, RESAMPLES))
    for position in range(count):
        drawn = generator.integers(count, size=RESAMPLES)
        means[position] = _draw_means(padded[drawn], sizes[drawn], generator)
    distances = np.abs(means.mean(axis=0) - mean)
    errors = means.std(axis=0, ddof=1) / math.sqrt(count)
    known = errors > 0
    ratios: np.ndarray = distances[known] / errors[known]
    return ratios


def _pad_clients(samples: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of each partition as one array, filled up with zeros.

    Args:
        samples: Numbers of the clients of each partition, ``[n_r]``.

    Returns:
        Numbers ``[partitions, max n_r]``, and each ``n_r``.
    """
    sizes = np.array([len(own) for own in samples])
    padded = np.zeros((len(samples), sizes.max()))
    for row, own in zip(padded, samples, strict=True):
        row[: len(own)] = own
    return padded, sizes


def _draw_means(
    padded: np.ndarray, sizes: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return the mean over clients that are drawn with replacement in each partition.

    Args:
        padded: Numbers of the clients, ``[partitions, max n_r]``.
        sizes: Number ``n_r`` of clients of each partition; as many are drawn.
        generator: Generator of random numbers.
    """
    counts = sizes[:, None]
    uniform = generator.random(padded.shape)
    clients = (uniform * counts).astype(int)
    values = np.take_along_axis(padded, clients, axis=1)
    # Only as many draws count as the partition has clients.
    places = np.arange(padded.shape[1])
    values[places >= counts] = 0
    means: np.ndarray = values.sum(axis=1) / sizes
    return means


def compare_signed_ranks(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test.

    The test assumes independent differences. The p-value is 1 if all finite
    differences are 0.
    """
    from scipy.stats import wilcoxon  # takes a second to import

    known = differences[np.isfinite(differences)]
    return float(wilcoxon(known).pvalue) if known.any() else 1.0


def correct(p: "pandas.Series[float]") -> "pandas.Series[float]":
    """Correct the known p-values by Holm's step-down procedure.

    The procedure keeps the probability of at least one false rejection below the
    level.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scand. J.
    Statist. 6 (1979).
    """
    known = p.dropna().sort_values()
    # For each test the number of p-values that are at least as large.
    remaining = np.arange(len(known), 0, -1)
    return (known * remaining).cummax().clip(upper=1).reindex(p.index)
