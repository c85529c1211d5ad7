"""Wilcoxon's signed-rank test, and Holm's correction for several tests.

With many tests at once some p-values are small by chance alone; Holm's correction
accounts for that.
"""

import numpy as np

# A difference with a corrected p-value below this counts as larger than the noise.
LEVEL = 0.05


def signed_rank(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, 1 where all finite
    ``differences`` are 0.

    The test takes the differences as independent.
    """
    from scipy.stats import wilcoxon  # takes a second to import

    known = differences[np.isfinite(differences)]
    if not known.any():
        return 1.0
    return float(wilcoxon(known).pvalue)


def holm(p: np.ndarray) -> np.ndarray:
    """Correct p-values ``[n]`` by Holm's step-down procedure.

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
