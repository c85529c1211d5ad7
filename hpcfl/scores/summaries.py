"""Summaries of a metric over clients."""

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
KINDS = ("mean", "std", "worst_tenth")


def summarised(kind: str, numbers: Numbers, better: str = "up") -> float:
    """Return a summary of the clients' numbers [clients], or NaN if all of them are
    NaN.

    Numbers that are NaN do not count.

    Args:
        kind: One of KINDS. "mean" is the mean with equal weights and "std" the
            population standard deviation. "worst_tenth" is the mean over the worst
            tenth of clients, at least one client.
        better: "up" if the lowest numbers are the worst, "down" if the highest are.
    """
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return math.nan
    if kind == "worst_tenth":
        ordered = np.sort(known)
        known = (ordered if better == "up" else ordered[::-1])[
            : max(1, len(known) // 10)
        ]
    return float(known.std() if kind == "std" else known.mean())
