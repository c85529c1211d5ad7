import numpy as np
import pytest

from hpcfl.report.inference import holm, signed_rank


def test_holm_by_hand():
    """Four tests, ascending 0.01, 0.02, 0.03, 0.4 times 4, 3, 2, 1: 0.04, 0.06, 0.06,
    0.4.

    The third would be 2·0.03 = 0.06, no less than the one before it. The order given
    does not matter, and no value exceeds 1.
    """
    assert holm(np.array([0.03, 0.4, 0.01, 0.02])).tolist() == pytest.approx(
        [0.06, 0.4, 0.04, 0.06]
    )
    assert holm(np.array([0.9, 0.8])).tolist() == [1, 1]
    assert holm(np.array([0.02, 0.001, 0.01])).tolist() == pytest.approx(
        [0.02, 0.003, 0.02]
    )


def test_the_signed_rank_test_by_hand():
    """Of the 2⁶ ways to deal out the signs of six gains, two are as extreme as all
    alike: p = 2/64. Ranks 1 + 3 + 5 = 9 against 12: 27 of 64 sums are at most 9.
    """
    steps = np.linspace(0.01, 0.06, 6)
    assert signed_rank(steps) == pytest.approx(2 / 64)
    assert signed_rank(steps * [1, -1, 1, -1, 1, -1]) == pytest.approx(2 * 27 / 64)


def test_the_same_numbers_do_not_differ_and_missing_ones_do_not_count():
    assert signed_rank(np.zeros(3)) == 1
    steps = np.linspace(0.01, 0.06, 6)
    assert signed_rank(np.append(steps, np.nan)) == signed_rank(steps)
