"""A validation part of each client's training samples, for methods that need one."""

from collections.abc import Sequence

import numpy as np

from hpcfl.rows import randomness


def hold_out(train: Sequence[np.ndarray], labels: np.ndarray, share: float,
             seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Index lists that remain for training, and those held out, both ascending.

    Stratified: a systematic sample of the client's samples sorted by class, in random order within a class,
    holds each class's share to within one sample. A client keeps at least one to train on, and holds out
    one if it has two.
    """
    if not share:
        return list(train), [held[:0] for held in train]
    parts = [_split(held, labels[held], share, randomness.generator(seed, "validation", client))
             for client, held in enumerate(train)]
    return [remaining for remaining, _ in parts], [out for _, out in parts]


def _split(held: np.ndarray, labels: np.ndarray, share: float,
           random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    count = min(max(1, round(share * len(held))), len(held) - 1)
    order = random.permutation(len(held))
    order = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(held), bool)
    chosen[order[((np.arange(count) + 0.5) * len(held) / max(count, 1)).astype(int)]] = True
    return held[~chosen], held[chosen]
