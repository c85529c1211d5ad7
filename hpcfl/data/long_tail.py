"""Long-tailed classes: of each class fewer training samples than of the one before it
(heterogeneity.md H6).

Class c of K keeps the first ⌊n·φ^(c/(K − 1))⌋ of its samples in a random order, n being
the mean number of a class and φ = 1/imbalance, as in CReFF (Shang et al., IJCAI 2022)
and in the long-tailed CIFAR of Cao et al., NeurIPS 2019. What a larger imbalance keeps a
smaller one keeps, too.
"""

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.experiment import sections
from hpcfl.rows import randomness

ROUNDING = 1e-9  # a whole number may come out a little too small


def select_samples(
    dataset: Dataset, data: sections.Data, seed: int, merged: bool
) -> tuple[np.ndarray, str]:
    """Return the samples that a long tail leaves, ascending numbers in the data set,
    and a note on their number.

    The official test split stays as it is, unless ``merged``: where a scheme deals it out
    with the training split, both are cut together. seed: that of the partition.
    """
    labels = dataset.y.numpy()
    merged = merged and dataset.merges
    end = len(labels) if merged else len(labels) - dataset.official_test
    rank = np.arange(dataset.classes)
    if data.imbalance_order == "random":
        rank = randomness.permutation(dataset.classes, seed, "long tail", "order")
    steps = max(1, dataset.classes - 1)
    sizes = end / dataset.classes * (1 / data.imbalance) ** (rank / steps)
    parts = [np.arange(end, len(labels))]
    for k, size in enumerate(sizes.tolist()):
        of_class = np.flatnonzero(labels[:end] == k)
        order = randomness.permutation(len(of_class), seed, "long tail", k)
        parts.append(of_class[order[: int(size + ROUNDING)]])
    chosen = np.sort(np.concatenate(parts))
    tests = "the official test split is whole"
    if merged or not dataset.official_test:
        tests = "each client's test samples have its own distribution"
    return chosen, (
        f"data.imbalance = {data.imbalance:g}: {len(chosen):,} of {len(labels):,} samples are "
        f"dealt out; {tests}"
    )


def restrict(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    """Return a data set of some samples of another one, by their ascending numbers."""
    first_test = len(dataset.y) - dataset.official_test
    return dataset.taken(chosen, official_test=int((chosen >= first_test).sum()))
