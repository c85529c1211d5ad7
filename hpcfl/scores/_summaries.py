"""How the clients' numbers become one."""

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
KINDS = ("mean", "std", "worst_tenth")


def summarised(kind: str, numbers: Numbers, better: str = "up") -> float:
    """One number of those that clients have, [clients], NaN for who has none; NaN if nobody has.

    mean: the plain mean over clients; std: its population standard deviation; worst_tenth: the mean over
    the tenth of clients that fare worst, at least one: those with the lowest numbers, or the highest where
    down is ``better``.
    """
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return math.nan
    if kind == "worst_tenth":
        ordered = np.sort(known)
        known = (ordered if better == "up" else ordered[::-1])[:max(1, len(known) // 10)]
    return float(known.std() if kind == "std" else known.mean())
