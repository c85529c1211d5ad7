"""Project points to the plane of their two principal components."""

from typing import NamedTuple

import numpy as np


class Plane(NamedTuple):
    """Projection of points to the plane of their two principal components.

    Attributes:
        points: Points in the plane, [n, 2].
        shares: Fractions of the variance along both directions, [2].
        directions: Both directions, [P, 2].
    """

    points: np.ndarray
    shares: np.ndarray
    directions: np.ndarray

    @property
    def axes(self) -> dict[str, str]:
        """Return the labels of a panel's axes by matplotlib's names."""
        first, second = (f"{100 * share:.0f} %" for share in self.shares)
        return {
            "xlabel": f"first component, {first} of the variance",
            "ylabel": f"second component, {second}",
        }


def project_to_plane(rows: np.ndarray) -> Plane:
    """Return the projection of points to the plane of their principal components.

    Args:
        rows: Points [n, P], with n ≥ 2 and P ≥ 2.
    """
    centred = (rows - rows.mean(axis=0)).astype(float)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    return Plane(
        left[:, :2] * sizes[:2], (sizes**2 / (sizes**2).sum())[:2], right[:2].T
    )
