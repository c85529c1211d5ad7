"""Stochastic rounding, and sums of whole numbers modulo a power of two."""

import torch
from torch import Tensor

# of whole numbers in a sum; a mean in float64 still tells sums of this size apart
MOST_BITS = 48


def round_randomly(values: Tensor, uniforms: Tensor) -> Tensor:
    """Return each value rounded down, plus 1 with the probability of its fraction.

    The expectation of the result is the value.

    Args:
        values: float64.
        uniforms: numbers in [0, 1) of the same shape.
    """
    lower = values.floor()
    return lower + (uniforms < values - lower)


def centre(sums: Tensor, bits: int) -> Tensor:
    """Return whole numbers modulo 2^bits, as the representatives in
    [−2^(bits−1), 2^(bits−1)).

    sums: int64.
    """
    half = 1 << (bits - 1)
    return torch.remainder(sums + half, 1 << bits) - half


def count_bits(largest: int) -> int:
    """Return the fewest bits of whole numbers modulo 2^bits with which no sum of
    magnitude up to ``largest`` wraps around.
    """
    return largest.bit_length() + 1
