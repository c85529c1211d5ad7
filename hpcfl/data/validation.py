"""A part of each client's training samples that is held out, for a method or to choose
the best round on.
"""

from collections.abc import Sequence

import numpy as np

from hpcfl.rows import randomness


def hold_out(
    train: Sequence[np.ndarray],
    labels: np.ndarray,
    share: float,
    seed: int,
    purpose: str = "validation",
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split each client's training samples.

    The choice is stratified: each class has its share to within one sample. A client
    keeps at least one sample to train on, and holds out one if it has two.

    Args:
        train: The clients' training samples, ascending.
        labels: int64, of all samples of the data set.
        share: Of a client's samples to hold out, in [0, 1).
        seed: Of the random choice.
        purpose: A part of the key of the random choice.

    Returns:
        Each client's samples that remain for training, and those held out, both
        ascending.
    """
    if not share:
        return list(train), [samples[:0] for samples in train]
    remaining = []
    held_out = []
    for client, samples in enumerate(train):
        generator = randomness.generator(seed, purpose, client)
        kept, chosen = _split(samples, labels[samples], share, generator)
        remaining.append(kept)
        held_out.append(chosen)
    return remaining, held_out


def _split(
    samples: np.ndarray,
    labels: np.ndarray,
    share: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Split one client's samples into those that remain and those held out: at even
    steps through all, sorted by class.

    Within a class they are in random order.
    """
    size = len(samples)
    count = min(max(1, round(share * size)), size - 1)
    shuffled = generator.permutation(size)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    steps = (np.arange(count) + 0.5) * size / max(count, 1)
    chosen = np.zeros(size, bool)
    chosen[by_class[steps.astype(int)]] = True
    return samples[~chosen], samples[chosen]
