"""Keyed randomness: every draw is a function of a seed and a key, never of what was
drawn before.

The key is a purpose and mostly the round and the client. There is no generator state to
save: a resumed run, another number of ranks or another order of clients draws the same
numbers. Philox is a counter-based generator, whose own key is a hash of the seed and
the draw's key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import cast

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike

PHILOX_WORDS = 4  # numbers of 64 bits that Philox draws for each value of its counter


class _Key(ISeedSequence):
    """Hands Philox its key, two words of 64 bits, as it is.

    ``Philox(key=…)`` would do the same, but asks the system for entropy first and
    throws it away.
    """

    def __init__(self, key: bytes):
        self._key = np.frombuffer(key, "<u8")

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint64) -> np.ndarray:
        return self._key


def _digest(seed: int, key: tuple[int | str, ...]) -> bytes:
    """16 bytes that are different for different seeds and keys; 1 and "1" differ, too."""
    parts = [str(seed)]
    for part in key:
        parts.append(f"{type(part).__name__}:{part}")
    text = "\x1f".join(parts)
    return blake2b(text.encode(), digest_size=16).digest()


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose, e.g. ``generator(seed, "shuffle", round,
    client)``.
    """
    philox_key = _Key(_digest(seed, key))
    # NumPy documents that any ISeedSequence will do; its annotation has none but
    # SeedSequence.
    philox = np.random.Philox(philox_key)  # type: ignore[arg-type]
    return np.random.Generator(philox)


def uniform(seed: int, *key: int | str, skip: int, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1) of ``generator(seed, *key)``, float64 [count], after
    the first ``skip``.
    """
    random = generator(seed, *key)
    philox = cast(np.random.Philox, random.bit_generator)
    # Whole values of the counter cost nothing to skip, the rest is drawn.
    philox.advance(skip // PHILOX_WORDS)
    random.random(skip % PHILOX_WORDS)
    return random.random(count)


def permutation(size: int, seed: int, *key: int | str) -> np.ndarray:
    """A random order of ``range(size)``, int64 [size]."""
    return generator(seed, *key).permutation(size)


@contextmanager
def seeded(seed: int, *key: int | str) -> Iterator[None]:
    """A block in which torch's own generators are seeded by the key, for constructors
    of modules and dropout.

    The CPU's is afterwards as it was; a GPU's, which nothing else draws from, is not.
    """
    with torch.random.fork_rng(devices=[]):
        number = int.from_bytes(_digest(seed, key)[:8], "little") >> 1
        # For every kind of device that was not used yet ``torch.manual_seed`` keeps
        # what it was asked, with the stack of calls; that costs more than the draws.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(number)
        yield
