"""Random numbers of given distributions that are identical on every machine.

``exp`` and ``log`` of C libraries differ between machines in the last bits, and a
difference of one microsecond can change the order of arrivals. Python's ``decimal``
rounds them correctly everywhere. Every drawn time is rounded once to a whole number,
and later times are whole numbers.
"""

from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np

CONTEXT = Context(prec=30)
LIBRARY = 1e-14  # largest relative error of a library's logarithm, and of a product


def draw_uniform(random: np.random.Generator) -> Decimal:
    """Return a uniform number in (0, 1]."""
    return Decimal(1) - Decimal(float(random.random()))


def draw_normal(random: np.random.Generator) -> Decimal:
    """Return a standard normal number by the polar method.

    The method (Marsaglia & Bray, SIAM Review 1964) needs only a square root and a
    logarithm.
    """
    while True:
        first = CONTEXT.subtract(2 * draw_uniform(random), Decimal(1))
        second = CONTEXT.subtract(2 * draw_uniform(random), Decimal(1))
        square = CONTEXT.fma(first, first, CONTEXT.multiply(second, second))
        if 0 < square < 1:
            break
    ratio = CONTEXT.divide(-2 * CONTEXT.ln(square), square)
    return CONTEXT.multiply(first, CONTEXT.sqrt(ratio))


def draw_lognormal(random: np.random.Generator, sigma: float) -> Decimal:
    """Return exp(σ z) for a standard normal z; the median is 1."""
    exponent = CONTEXT.multiply(Decimal(sigma), draw_normal(random))
    return CONTEXT.exp(exponent)


def draw_exponentials(uniforms: np.ndarray, means: Sequence[Decimal]) -> np.ndarray:
    """Return exponentially distributed whole numbers, int64 [n].

    They are −m ln u, rounded. The last bits of a library's logarithm are not reliable.
    This matters only for values close to the middle between two whole numbers, which
    are computed exactly.

    Args:
        uniforms: numbers u in (0, 1], float64 [n].
        means: mean m of each number.
    """
    estimates = -np.log(uniforms) * np.array([float(mean) for mean in means])
    rounded: np.ndarray = np.rint(estimates).astype(np.int64)
    from_middle = np.abs(estimates - np.floor(estimates) - 0.5)
    for place in np.flatnonzero(from_middle <= LIBRARY * estimates).tolist():
        logarithm = CONTEXT.ln(Decimal(float(uniforms[place])))
        rounded[place] = round_to_whole(-means[place] * logarithm)
    return rounded


def compute_power(base: Decimal, exponent: Decimal) -> Decimal:
    """Return base^exponent for a positive base."""
    return CONTEXT.exp(CONTEXT.multiply(exponent, CONTEXT.ln(base)))


def round_to_whole(number: Decimal) -> int:
    """Return the nearest whole number, halves to even."""
    return int(number.to_integral_value())
