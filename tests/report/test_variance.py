"""Variance components, compared with sums of squares by hand, with known components,
and with one another.
"""

import math

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.report import variance

SEARCHES, PARTITIONS = 5, 10


def draw(seed, search, partition, training, shape=(SEARCHES, PARTITIONS), mean=0.0):
    """Return scores with known deviations of the three components."""
    random = np.random.default_rng(seed)
    of_search = search * random.standard_normal((shape[0], 1))
    of_partition = partition * random.standard_normal((1, shape[1]))
    return mean + of_search + of_partition + training * random.standard_normal(shape)


def test_balanced_components_are_those_of_the_mean_squares():
    """Searle, Casella & McCulloch, "Variance Components", 1992, section 4.7: with the
    mean squares M, σ²_s = (M_s − M_e)/P and σ²_p = (M_p − M_e)/S.
    """
    scores = draw(0, 0.02, 0.03, 0.01, mean=0.8)
    mean = scores.mean()
    rows, columns = scores.mean(axis=1) - mean, scores.mean(axis=0) - mean
    rest = scores - mean - rows[:, None] - columns
    of_search = PARTITIONS * (rows**2).sum() / 4
    of_partition = SEARCHES * (columns**2).sum() / 9
    residual = (rest**2).sum() / 36
    found = variance.estimate(scores)
    assert found.mean == pytest.approx(mean)
    search, partition = of_search - residual, of_partition - residual
    assert found.search**2 == pytest.approx(search / PARTITIONS, rel=1e-3)
    assert found.partition**2 == pytest.approx(partition / SEARCHES, rel=1e-3)
    assert found.training**2 == pytest.approx(residual, rel=1e-3)
    error = of_search + of_partition - residual
    assert found.error**2 == pytest.approx(error / 50, rel=1e-3)
    parts = of_search**2 / 4 + of_partition**2 / 9 + residual**2 / 36
    assert found.freedom == pytest.approx(error**2 / parts, rel=1e-3)


@pytest.mark.slow
def test_known_components_are_found_and_intervals_hold_the_truth():
    """Mean squares of 60 draws are within three of their standard errors. Of 60
    intervals of 95 % at least 51 contain the truth, with a probability of error of one
    in 400.
    """
    found = [variance.estimate(draw(seed, 2.0, 1.0, 0.5)) for seed in range(60)]
    for name, known, levels in (
        ("search", 2.0, SEARCHES),
        ("partition", 1.0, PARTITIONS),
        ("training", 0.5, 37),
    ):
        square = np.mean([getattr(one, name) ** 2 for one in found])
        relative = math.sqrt(2 / (levels - 1) / len(found))
        assert square == pytest.approx(known**2, rel=3 * relative), name
    assert sum(abs(one.mean) < one.compute_half_width() for one in found) >= 51
    assert sum(one.p < 0.05 for one in found) <= 9


def test_components_of_zero_leave_the_plain_mean():
    """Rows and columns with equal sums have no component."""
    square = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 1.0], [3.0, 1.0, 2.0]])
    found = variance.estimate(square)
    assert (found.mean, found.search, found.partition) == (2.0, 0.0, 0.0)
    assert found.error == pytest.approx(square.std(ddof=1) / 3) and found.freedom == 8


@pytest.mark.parametrize("scores", [[[0.1, 0.2, 0.4]], [[1.0, 2.0], [2.0, 3.0]], [[]]])
def test_components_that_cannot_be_estimated_are_nan(scores):
    """The cases are one search, no residual, and no run."""
    found = variance.estimate(np.array(scores))
    assert math.isnan(found.compute_half_width()) and math.isnan(found.search)


def test_scores_that_are_all_alike_have_no_error():
    found = variance.estimate(np.full((2, 3), 0.5))
    assert (found.mean, found.compute_half_width(), found.p) == (0.5, 0.0, 0.0)


def test_the_bootstrap_confirms_the_standard_error():
    """Over ten draws the mean ratio of both is 1 up to the known excess of the
    bootstrap, at most √(1 + 3/50 + …) < 1.25 for variances of 1.
    """
    ratios = []
    for seed in range(10):
        scores = draw(seed, 1.0, 1.0, 1.0)
        error = variance.estimate(scores).error
        ratios.append(variance.bootstrap_error(scores) / error)
    assert 0.8 < np.mean(ratios) < 1.25


def test_the_bootstrap_counts_the_variance_of_clients_once():
    """The means of partitions differ by their clients alone. The interval that also
    draws clients would be √2 times as wide as that of the mixed model.
    """
    normal = np.random.default_rng(0).standard_normal
    gains = normal((30, 1, 20)) + 0.1 * normal((30, 3, 20))
    interval, half = variance.estimate_interval(gains)
    assert half == pytest.approx(interval.half, rel=0.15)


def test_without_statsmodels_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setattr(variance, "find_spec", lambda name: None)
    with expect_refusal(r'pip install "\.\[statistics\]"'):
        variance.estimate(draw(0, 1.0, 1.0, 1.0))
