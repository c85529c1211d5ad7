"""Intervals over partitions: cases computed by hand, and coverage."""

import math

import numpy as np
import pandas
import pytest

from hpcfl.report.inference import (
    compare_signed_ranks,
    correct,
    count_needed_partitions,
    estimate_interval,
)


def test_the_mean_is_over_partitions_and_not_over_clients():
    """The means of one and of three clients are 2 and 6, so 4; their standard deviation
    is √8.
    """
    found = estimate_interval([np.array([2.0]), np.array([5.0, 6.0, 7.0])])
    assert (found.mean, found.partitions) == (4, 2)
    assert found.deviation == pytest.approx(math.sqrt(8))


def test_one_partition_has_no_interval():
    found = estimate_interval([np.array([1.0, 2.0])])
    assert found.mean == 1.5 and math.isnan(found.half) and math.isnan(found.p)
    assert not found.is_within(100)


def test_partitions_without_variance_have_an_interval_of_zero():
    same = estimate_interval([np.zeros(3), np.zeros(3)])
    assert (same.mean, same.half, same.p) == (0, 0, 1) and same.is_within(0.1)
    apart = estimate_interval([np.ones(3), np.ones(3)])
    assert (apart.mean, apart.half, apart.p) == (1, 0, 0) and not apart.is_within(0.5)


def test_two_partitions_without_spread_have_no_interval():
    """Every resample of both has the same mean."""
    found = estimate_interval([np.array([0.1]), np.array([0.3])])
    assert found.mean == pytest.approx(0.2)
    assert math.isnan(found.half) and math.isnan(found.p)


def test_the_same_numbers_make_the_same_interval():
    numbers = list(np.random.default_rng(1).normal(size=(5, 4)))
    assert estimate_interval(numbers) == estimate_interval(numbers)
    mirrored = estimate_interval([-of_partition for of_partition in numbers])
    assert mirrored.half == estimate_interval(numbers).half


def test_with_clients_that_agree_it_is_close_to_a_t_interval():
    """Thirty partitions, means with standard deviation s: ± t(0.975, 29)·s/√30."""
    means = np.random.default_rng(2).normal(size=30)
    found = estimate_interval([np.full(4, mean) for mean in means])
    expected = 2.0452 * means.std(ddof=1) / math.sqrt(30)
    assert found.half == pytest.approx(expected, rel=0.1)
    assert found.narrow < found.half


def test_partitions_have_equal_weight_for_any_number_of_clients():
    padded = estimate_interval([np.array([1.0]), np.array([2.0, 4.0]), np.array([3.0])])
    assert padded.mean == pytest.approx(7 / 3)


@pytest.mark.slow
def test_intervals_have_their_nominal_coverage():
    """Eight partitions of ten clients, true difference 0: 95 % of 200 intervals contain
    it, between 181 and 198 with a probability of error of one in a thousand.
    """
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        of_partition = generator.normal(size=(8, 1))
        found = estimate_interval(list(of_partition + generator.normal(0, 2, (8, 10))))
        held += abs(found.mean) <= found.half
    assert 181 <= held <= 198


@pytest.mark.slow
def test_partitions_that_a_difference_needs():
    """Cohen's table 2.4.1 for paired samples, 80 %, two-sided 5 %: d = 0.5 needs 34
    pairs, d = 1 needs 10.
    """
    assert count_needed_partitions(2.0, 1.0, 0.05) == 34
    assert count_needed_partitions(1.0, 1.0, 0.05) == 10
    assert count_needed_partitions(1.0, 1.0, 0.05 / 30) > 10
    assert count_needed_partitions(0.0, 1.0, 0.05) == 2
    assert count_needed_partitions(1e6, 1.0, 0.05) is None


def test_holm_by_hand():
    """Four tests, ascending 0.01, 0.02, 0.03, 0.4 times 4, 3, 2, 1: 0.04, 0.06, 0.06,
    0.4.

    The third would be 2·0.03 = 0.06, not less than the one before it. The given order
    has no effect, and no value exceeds 1.
    """
    four = correct(pandas.Series([0.03, 0.4, np.nan, 0.01, 0.02]))
    assert four.tolist() == pytest.approx([0.06, 0.4, np.nan, 0.04, 0.06], nan_ok=True)
    assert correct(pandas.Series([0.9, 0.8])).tolist() == [1, 1]
    three = correct(pandas.Series([0.02, 0.001, 0.01]))
    assert three.tolist() == pytest.approx([0.02, 0.003, 0.02])


def test_the_signed_rank_test_by_hand():
    """Of the 2⁶ ways to assign the signs of six gains, two are as extreme as equal
    signs: p = 2/64. Ranks 1 + 3 + 5 = 9 against 12: 27 of 64 sums are at most 9.
    """
    steps = np.linspace(0.01, 0.06, 6)
    assert compare_signed_ranks(steps) == pytest.approx(2 / 64)
    assert compare_signed_ranks(steps * [1, -1, 1, -1, 1, -1]) == pytest.approx(
        2 * 27 / 64
    )


def test_the_same_numbers_do_not_differ_and_missing_ones_do_not_count():
    assert compare_signed_ranks(np.zeros(3)) == 1
    steps = np.linspace(0.01, 0.06, 6)
    assert compare_signed_ranks(np.append(steps, np.nan)) == compare_signed_ranks(steps)
