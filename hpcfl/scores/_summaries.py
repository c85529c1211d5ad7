"""Summaries over clients: how their numbers become one."""

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
KINDS = ("mean", "std", "worst_tenth")


def summarised(kind: str, numbers: Numbers, better: str = "up") -> float:
    """A summary of the clients' numbers [clients], without those that are NaN; NaN if
    all are.

    kind: one of KINDS. "mean" is the mean with equal weights, "std" the population
    standard deviation, and "worst_tenth" the mean over the tenth of clients, at least
    one, with the lowest numbers, or with the highest where ``better`` is "down".
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
