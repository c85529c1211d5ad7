"""Stochastic rounding, and sums of integers modulo a power of two."""

import torch
from torch import Tensor

# Largest size of integers in a sum: means of such sums are still different in float64.
MOST_BITS = 48


def round_randomly(values: Tensor, uniforms: Tensor) -> Tensor:
    """Return each value rounded down, plus 1 with the probability of its fraction, so
    that the expected result is the value.

    Args:
        values: Numbers in float64.
        uniforms: Random numbers in [0, 1) of the same shape.
    """
    lower = values.floor()
    return lower + (uniforms < values - lower)


def centre(sums: Tensor, bits: int) -> Tensor:
    """Return integers modulo 2^bits in the range [−2^(bits−1), 2^(bits−1)).

    Args:
        sums: Integers, int64.
        bits: Number of bits.
    """
    half = 1 << (bits - 1)
    return torch.remainder(sums + half, 1 << bits) - half


def count_bits(largest: int) -> int:
    """Return the least number of bits such that no sum of magnitude up to ``largest``
    wraps around modulo 2^bits.
    """
    return largest.bit_length() + 1
