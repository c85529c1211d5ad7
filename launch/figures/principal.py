"""The plane in which points in many dimensions differ most: that of their two principal
components.
"""

from typing import NamedTuple

import numpy as np


class Plane(NamedTuple):
    """Points [n, 2] in the plane, the shares [2] of their variance along it, its two
    directions [P, 2].
    """

    points: np.ndarray
    shares: np.ndarray
    directions: np.ndarray

    @property
    def axes(self) -> dict[str, str]:
        """Return the labels of a panel's axes."""
        first, second = (f"{100 * share:.0f} %" for share in self.shares)
        return {
            "xlabel": f"first component, {first} of the variance",
            "ylabel": f"second component, {second}",
        }


def principal(rows: np.ndarray) -> Plane:
    """The plane of rows [n, P], which are at least two and have two numbers each or
    more.
    """
    centred = (rows - rows.mean(axis=0)).astype(float)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    return Plane(
        left[:, :2] * sizes[:2], (sizes**2 / (sizes**2).sum())[:2], right[:2].T
    )
