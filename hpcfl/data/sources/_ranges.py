"""Parts and clients of a data set whose values are scaled in another way."""

from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Owners

FACTOR = 100  # pixels of 0 … 255 beside pixels of 0 … 1 differ by 255
PARTS = ("training samples", "test samples")


def describe(
    path: Path, x: np.ndarray, official_test: int, owners: Owners | None
) -> tuple[str, ...]:
    """Return a note for training and test samples, and one for clients, whose typical
    largest values differ by more than FACTOR.
    """
    flat = x.reshape(len(x), -1)
    smallest = flat.min(axis=1).astype(float)
    largest = np.maximum(flat.max(axis=1), -smallest)
    part = (np.arange(len(x)) >= len(x) - official_test).astype(int)
    notes = _compare(path, largest, part, PARTS)
    if owners is not None:
        names = tuple(f"client '{name}'" for name in owners.names)
        notes += _compare(path, largest, owners.of, names)
    return notes


def _compare(
    path: Path, largest: np.ndarray, group: np.ndarray, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a note on the two groups whose median of ``largest`` differs most, or none.

    group: position in ``names`` of the group of each sample.
    """
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    pieces = np.split(largest[order], starts[1:])
    medians = np.array([np.median(piece) for piece in pieces])
    # where most samples are zeros, their scale is not known
    low, high = np.where(medians, medians, np.inf).argmin(), medians.argmax()
    if medians[high] <= FACTOR * medians[low] or not medians[low]:
        return ()
    return (
        f"{path}: values reach {medians[high]:g} in {names[present[high]]}, but "
        f"{medians[low]:g} in {names[present[low]]}; are both scaled alike?",
    )
