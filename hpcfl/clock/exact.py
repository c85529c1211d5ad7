"""Random numbers of given distributions that are the same on every machine.

``exp`` and ``log`` of C libraries differ in last bits from machine to machine, and a
client that is one microsecond faster there may change who comes first. Python's
``decimal`` rounds them correctly everywhere. What is drawn here is rounded to a whole
number once, and from then on time is whole numbers.
"""

from decimal import Context, Decimal

import numpy as np

CONTEXT = Context(prec=30)


def uniform(random: np.random.Generator) -> Decimal:
    """A number in (0, 1]."""
    return Decimal(1) - Decimal(float(random.random()))


def normal(random: np.random.Generator) -> Decimal:
    """A standard normal number, by the polar method (Marsaglia & Bray, SIAM Review
    1964), which needs no function but a root and a logarithm.
    """
    while True:
        first = CONTEXT.subtract(2 * uniform(random), Decimal(1))
        second = CONTEXT.subtract(2 * uniform(random), Decimal(1))
        square = CONTEXT.fma(first, first, CONTEXT.multiply(second, second))
        if 0 < square < 1:
            break
    ratio = CONTEXT.divide(-2 * CONTEXT.ln(square), square)
    return CONTEXT.multiply(first, CONTEXT.sqrt(ratio))


def lognormal(random: np.random.Generator, sigma: float) -> Decimal:
    """exp(σ z) of a standard normal z: its median is 1."""
    exponent = CONTEXT.multiply(Decimal(sigma), normal(random))
    return CONTEXT.exp(exponent)


def exponential(random: np.random.Generator) -> Decimal:
    """A number of the exponential distribution with mean 1: −ln u."""
    return -CONTEXT.ln(uniform(random))


def power(base: Decimal, exponent: Decimal) -> Decimal:
    """base^exponent of a base above 0."""
    return CONTEXT.exp(CONTEXT.multiply(exponent, CONTEXT.ln(base)))


def whole(number: Decimal) -> int:
    """The nearest whole number, halves to the even one."""
    return int(number.to_integral_value())
