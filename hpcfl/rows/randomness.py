"""Keyed randomness: every draw is a function of a seed and a key.

Draws do not depend on earlier draws.

The key is a purpose, usually with the round and the client. No generator state has to
be saved. A resumed run, another number of ranks or another order of clients gives the
same numbers. The generator is Philox, a counter-based one. Its key is a hash of the
seed and the key of the draw.
"""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import cast

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike

PHILOX_WORDS = 4  # 64-bit numbers that Philox draws for each value of its counter


class _Key(ISeedSequence):
    """Seed sequence that passes Philox its key, two 64-bit words, unchanged.

    ``Philox(key=…)`` has the same effect, but first reads entropy from the system and
    discards it.
    """

    def __init__(self, key: bytes):
        self._key = np.frombuffer(key, "<u8")

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint64) -> np.ndarray:
        return self._key


def _digest(seed: int, key: tuple[int | str, ...]) -> bytes:
    """Return 16 bytes that identify a seed and a key. The keys 1 and "1" differ."""
    parts = [str(seed)]
    for part in key:
        parts.append(f"{type(part).__name__}:{part}")
    text = "\x1f".join(parts)
    return blake2b(text.encode(), digest_size=16).digest()


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return a NumPy generator for one purpose.

    An example is ``generator(seed, "shuffle", round, client)``.

    Args:
        seed: seed of the experiment.
        key: purpose, usually followed by round and client.
    """
    philox_key = _Key(_digest(seed, key))
    # NumPy documents that any ISeedSequence is allowed; its annotation permits
    # SeedSequence only.
    philox = np.random.Philox(philox_key)  # type: ignore[arg-type]
    return np.random.Generator(philox)


def uniform(seed: int, *key: int | str, skip: int, count: int) -> np.ndarray:
    """Return uniform numbers in [0, 1) of ``generator(seed, *key)``, float64 [count].

    Args:
        seed, key: as for ``generator``.
        skip: number of numbers to skip.
        count: number of numbers to return.
    """
    drawing = generator(seed, *key)
    philox = cast(np.random.Philox, drawing.bit_generator)
    # Philox skips whole values of the counter without computing them. The remaining
    # numbers are drawn and discarded.
    philox.advance(skip // PHILOX_WORDS)
    drawing.random(skip % PHILOX_WORDS)
    return drawing.random(count)


def permutation(size: int, seed: int, *key: int | str) -> np.ndarray:
    """Return a random order of ``range(size)``, int64 [size]."""
    return generator(seed, *key).permutation(size)


@contextmanager
def seeded(seed: int, *key: int | str) -> Iterator[None]:
    """Seed torch's generators by the key in a block, for constructors and dropout.

    After the block the CPU's generator is restored. A GPU's generator is not restored,
    because no other code draws from it.

    Args:
        seed, key: as for ``generator``.
    """
    with torch.random.fork_rng(devices=[]):
        number = int.from_bytes(_digest(seed, key)[:8], "little") >> 1
        # ``torch.manual_seed`` would store the request and the call stack for every
        # unused kind of device, which takes longer than the draws.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(number)
        yield


def read_generators() -> bytes:
    """Return the states of the global generators of torch (CPU), NumPy and Python.

    They change if code draws random numbers without a key.
    """
    of_torch = torch.get_rng_state().numpy()
    return pickle.dumps((of_torch, np.random.get_state(), random.getstate()))
