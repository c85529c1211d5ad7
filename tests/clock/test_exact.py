"""Draws with the same bits on every machine."""

from decimal import Decimal
from statistics import NormalDist

import numpy as np

from hpcfl.clock import exact
from hpcfl.rows import randomness


def test_a_normal_number_is_one():
    random = randomness.generator(1, "test")
    drawn = sorted(float(exact.draw_normal(random)) for _ in range(1000))
    places = (np.arange(1000) + 0.5) / 1000
    expected = np.array([NormalDist().inv_cdf(place) for place in places])
    # Kolmogorov-Smirnov, whose 0.001 quantile is 1.95/√n
    found = np.array([NormalDist().cdf(number) for number in drawn])
    assert np.abs(found - places).max() < 1.95 / np.sqrt(1000)
    assert np.abs(np.array(drawn) - expected)[100:-100].max() < 0.25


def test_exponential_lengths_are_those_of_exact_arithmetic():
    """For random arguments, and 10⁻¹² above and below the middle of two whole numbers,
    where a library's logarithm is not exact enough.
    """
    uniforms = 1 - np.random.default_rng(1).random(300)
    means = [Decimal(10) ** (number % 16) for number in range(300)]
    middle = Decimal(10**6) + Decimal("0.5")
    for beside in (Decimal("1e-12"), Decimal("-1e-12")):
        means.append((middle + beside) / exact.CONTEXT.ln(Decimal(2)))
    found = exact.draw_exponentials(np.append(uniforms, [0.5, 0.5]), means)
    assert found[-2:].tolist() == [10**6 + 1, 10**6]
    for place in range(300):
        logarithm = exact.CONTEXT.ln(Decimal(float(uniforms[place])))
        assert found[place] == exact.round_to_whole(-means[place] * logarithm)
