"""Long-tailed classes: the number of training samples decreases from class to class
(heterogeneity.md H6).

Class c of K keeps the first ⌊n·φ^(c/(K − 1))⌋ of its samples in a random order, where n
is the mean number of samples per class and φ = 1/imbalance, as in CReFF (Shang et al.,
IJCAI 2022) and in the long-tailed CIFAR of Cao et al., NeurIPS 2019. The samples kept
with a larger imbalance are a subset of those kept with a smaller one.
"""

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.experiment import sections
from hpcfl.rows import randomness

ROUNDING = 1e-9  # corrects whole numbers that rounding makes slightly too small


def select_samples(
    dataset: Dataset, data: sections.Data, seed: int, merged: bool
) -> tuple[np.ndarray, str]:
    """Select the samples of a long-tailed data set.

    Args:
        dataset: the data set.
        data: the section ``[data]``.
        seed: seed of the partition.
        merged: Whether the scheme merges the official splits. Then both are reduced
            together, or the official test split is unused if the data set does not
            merge them; else the official test split remains complete.

    Returns:
        Numbers of the selected samples, ascending, and a note on their number.
    """
    labels = dataset.y.numpy()
    trained = len(labels) - dataset.official_test
    end = trained
    if merged and dataset.merges:
        end = len(labels)
    place = np.arange(dataset.classes)
    if data.imbalance_order == "random":
        place = randomness.permutation(dataset.classes, seed, "long tail", "order")
    steps = max(1, dataset.classes - 1)
    mean_size = end / dataset.classes
    sizes = mean_size * (1 / data.imbalance) ** (place / steps)
    parts = []
    if not merged:
        parts.append(np.arange(end, len(labels)))
    for k, size in enumerate(sizes.tolist()):
        of_class = np.flatnonzero(labels[:end] == k)
        order = randomness.permutation(len(of_class), seed, "long tail", k)
        kept = order[: int(size + ROUNDING)]
        parts.append(of_class[kept])
    chosen = np.sort(np.concatenate(parts))
    tests = "the official test split is complete"
    if merged or not dataset.official_test:
        tests = "a client's test samples have the class distribution of its training samples"
    return chosen, (
        f"data.imbalance = {data.imbalance:g}: {len(chosen):,} of {len(labels):,} samples are "
        f"used; {tests}"
    )


def restrict(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    """Return a data set of chosen samples.

    Args:
        dataset: the whole data set.
        chosen: numbers of the samples, ascending.
    """
    first_test = len(dataset.y) - dataset.official_test
    tests = np.count_nonzero(chosen >= first_test)
    return dataset.select(chosen, official_test=int(tests))
