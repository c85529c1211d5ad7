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
    """Each client's samples that remain for training, and those held out, both
    ascending.

    train: the clients' training samples, ascending. labels: int64, of all samples of
    the data set. share: of a client's samples to hold out, in [0, 1). purpose: a part
    of the key of the choice, which is stratified, so that each class has its share to
    within one sample. A client keeps at least one sample to train on, and holds out one
    if it has two.
    """
    if not share:
        return list(train), [samples[:0] for samples in train]
    parts = [
        _split(
            samples, labels[samples], share, randomness.generator(seed, purpose, client)
        )
        for client, samples in enumerate(train)
    ]
    return [remaining for remaining, _ in parts], [held_out for _, held_out in parts]


def _split(
    samples: np.ndarray, labels: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """One client's remaining samples, and those held out: at even steps through all,
    sorted by class.

    Within a class they are in random order.
    """
    count = min(max(1, round(share * len(samples))), len(samples) - 1)
    order = random.permutation(len(samples))
    order = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(samples), bool)
    chosen[
        order[((np.arange(count) + 0.5) * len(samples) / max(count, 1)).astype(int)]
    ] = True
    return samples[~chosen], samples[chosen]
