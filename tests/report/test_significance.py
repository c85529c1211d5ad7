import numpy as np
import pytest

from hpcfl.report.significance import compare, holm


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


def test_two_methods_by_hand():
    """Six clients, all better: of the 2⁶ ways to deal out the signs, two are as
    extreme: p = 2/64.
    """
    better = np.array([0.9, 0.8, 0.7, 0.65, 0.6, 0.5])
    found = compare(
        {"a": better, "b": better - np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])}
    )
    assert found.p[0, 1] == found.p[1, 0] == pytest.approx(2 / 64)
    assert (
        found.mean("a") - found.mean("b") == pytest.approx(0.035) and found.pairs == 6
    )


def test_each_pair_is_corrected_for_all_pairs():
    """Three pairs of methods: the smallest of the three p-values counts three times."""
    steps = np.linspace(0.01, 0.06, 6)
    noise = 0.001 * np.array([1, -2, 3, -4, 5, -6])
    found = compare(
        {
            "a": 3 * steps,
            "b": 2 * steps,
            "c": 2 * steps + noise,
        }
    )
    assert found.p[0, 1] == pytest.approx(3 * 2 / 64)


def test_the_same_numbers_do_not_differ():
    same = np.array([0.5, 0.25, 1.0])
    found = compare({"a": same, "b": same.copy()})
    assert found.p.tolist() == [[1, 1], [1, 1]]
