"""Intervals over partitions: the cases that can be computed by hand, and coverage."""

import math

import numpy as np
import pytest

from hpcfl.report.inference import interval, partitions_needed


def test_the_mean_is_over_partitions_and_not_over_clients():
    """Means 2 and 6 of one and three clients: 4; their standard deviation is √8."""
    found = interval([np.array([2.0]), np.array([5.0, 6.0, 7.0])])
    assert (found.mean, found.partitions) == (4, 2)
    assert found.deviation == pytest.approx(math.sqrt(8))


def test_one_partition_says_nothing_of_others():
    found = interval([np.array([1.0, 2.0])])
    assert found.mean == 1.5 and math.isnan(found.half) and math.isnan(found.p)
    assert not found.within(100)


def test_where_nothing_varies_nothing_is_estimated():
    same = interval([np.zeros(3), np.zeros(3)])
    assert (same.mean, same.half, same.p) == (0, 0, 1) and same.within(0.1)
    apart = interval([np.ones(3), np.ones(3)])
    assert (apart.mean, apart.half, apart.p) == (1, 0, 0) and not apart.within(0.5)


def test_two_partitions_whose_clients_agree_say_nothing():
    """No resample of both has another mean than theirs together."""
    found = interval([np.array([0.1]), np.array([0.3])])
    assert found.mean == pytest.approx(0.2)
    assert math.isnan(found.half) and math.isnan(found.p)


def test_the_same_numbers_make_the_same_interval():
    numbers = list(np.random.default_rng(1).normal(size=(5, 4)))
    assert interval(numbers) == interval(numbers)
    mirrored = interval([-of_partition for of_partition in numbers])
    assert mirrored.half == interval(numbers).half


def test_with_clients_that_agree_it_is_close_to_a_t_interval():
    """Thirty partitions, means with standard deviation s: ± t(0.975, 29)·s/√30."""
    means = np.random.default_rng(2).normal(size=30)
    found = interval([np.full(4, mean) for mean in means])
    expected = 2.0452 * means.std(ddof=1) / math.sqrt(30)
    assert found.half == pytest.approx(expected, rel=0.1)
    assert found.narrow < found.half


def test_a_client_that_is_alone_counts_like_the_many_of_another_partition():
    padded = interval([np.array([1.0]), np.array([2.0, 4.0]), np.array([3.0])])
    assert padded.mean == pytest.approx(7 / 3)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Eight partitions of ten clients, true difference 0: 95 % of 200 intervals, so
    between 181 and 198 but once in a thousand.
    """
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        of_partition = generator.normal(size=(8, 1))
        found = interval(list(of_partition + generator.normal(0, 2, (8, 10))))
        held += abs(found.mean) <= found.half
    assert 181 <= held <= 198


@pytest.mark.slow
def test_partitions_that_a_difference_needs():
    """Cohen's table 2.4.1 for paired samples, 80 %, two-sided 5 %: d = 0.5 needs 34
    pairs, d = 1 needs 10.
    """
    assert partitions_needed(2.0, 1.0, 0.05) == 34
    assert partitions_needed(1.0, 1.0, 0.05) == 10
    assert partitions_needed(1.0, 1.0, 0.05 / 30) > 10
    assert partitions_needed(0.0, 1.0, 0.05) == 2
    assert partitions_needed(1e6, 1.0, 0.05) is None
