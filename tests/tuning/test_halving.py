"""Arithmetic of a search, by hand."""

from fractions import Fraction

import pytest

from hpcfl.tuning import halving
from hpcfl.tuning.halving import Rung


def test_halving_and_its_cost_by_hand():
    """Eight trials run for a quarter of the rounds, four of them for another quarter,
    two of these for the other half: 8/4 + 4/4 + 2/2 whole runs.
    """
    rungs = halving.list_rungs(trials=8, eta=2, count=3)
    quarter, half, whole = Fraction(1, 4), Fraction(1, 2), Fraction(1)
    assert rungs == [Rung(quarter, 8), Rung(half, 4), Rung(whole, 2)]
    assert halving.compute_cost(rungs) == 4


def test_each_rung_has_at_least_one_trial():
    assert [rung.trials for rung in halving.list_rungs(3, 3, 3)] == [3, 1, 1]


def test_whole_runs_fit_into_the_cost_of_the_halving():
    """The cost is four whole runs. Each trial is also measured by a tenth of a run:
    three of 1.1 fit.
    """
    [rung] = halving.list_whole_runs(8, 2, 3, measured=Fraction(1, 10))
    assert rung == Rung(Fraction(1), 3)
    [rung] = halving.list_whole_runs(1, 2, 3, measured=Fraction(1, 10))
    assert rung.trials == 1


@pytest.mark.parametrize("every, rounds", [(1, 3), (2, 4), (3, 6), (4, 4), (10, 10)])
def test_the_number_of_measured_rounds_covers_one_scoring(every, rounds):
    assert halving.count_measured_rounds(every) == rounds


def test_rounds_within_a_budget_by_hand():
    """Of 100, 44 are spent in four rounds and 4 in the last scoring. Two rounds, one of
    them scored, take 24, so the other 52 are four rounds more.
    """
    costs = {
        "gradients": [10, 10, 12, 12],
        "every": 2,
    }
    assert halving.count_rounds_within(96, **costs, most=40) == 8
    assert halving.count_rounds_within(96, **costs, most=6) == 6
    assert halving.count_rounds_within(44, **costs, most=40) == 4
    assert halving.count_rounds_within(6, **costs, most=40) == 4


def test_scored_rounds_and_others_are_measured_apart():
    """Of five rounds the last is scored and takes 20, the third and fourth take 6 and
    10 without scoring. Five more cost 20 + 4 · 8 = 52, and 500 − 58 − 20 are 40.6
    rounds more.
    """
    costs = {
        "gradients": [11, 11, 6, 10, 20],
        "every": 5,
    }
    assert halving.count_rounds_within(480, **costs, most=99) == 45


def test_all_rounds_without_cost_are_within_the_budget():
    assert (
        halving.count_rounds_within(
            9,
            [0, 0, 0],
            every=1,
            most=7,
        )
        == 7
    )


def test_rounds_of_a_rung():
    assert halving.count_rounds_at(10, Fraction(1, 4), least=1) == 3
    assert halving.count_rounds_at(10, Fraction(1, 4), least=4) == 4
    assert halving.count_rounds_at(10, Fraction(1), least=4) == 10


def test_a_trial_without_a_number_is_never_selected():
    ranks = {
        "a": 0.5,
        "b": None,
        "c": 0.7,
        "d": 0.5,
    }
    assert halving.select_best(ranks, 2) == ["c", "a"]
    assert halving.select_best(ranks, 4) == ["c", "a", "d"]
    assert halving.select_best({"b": None}, 1) == []


def test_a_mean_needs_all_numbers():
    assert halving.compute_mean([0.25, 0.75]) == 0.5
    assert halving.compute_mean([0.25, None]) is None


def test_the_expected_best_by_hand():
    """Two draws of 1 and 3: both are 1 in a quarter of the cases, otherwise the best is
    3.
    """
    assert halving.expect_best([3.0, 1.0]) == [2.0, 0.25 * 1 + 0.75 * 3]
    assert halving.expect_best([]) == []
