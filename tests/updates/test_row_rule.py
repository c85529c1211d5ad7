"""Rows that a rule uses, mixing before it, and rounds with too few rows."""

import numpy as np
import pytest
import torch

from hpcfl.updates.base import Context, SkippedRound
from hpcfl.updates.rules.coordinates import Median
from hpcfl.updates.rules.neighbours import Bulyan, Krum, MultiKrum

LINE = torch.tensor([[0.0], [1], [3], [10]])


def combine(rule, rows, round=1):
    context = Context(seed=1, round=round, ids=np.arange(len(rows)), clients=9)
    return rule.combine(rows, torch.ones(len(rows)).double(), context).tolist()


def test_rows_that_are_not_finite_are_left_out_first():
    broken = torch.tensor([[torch.nan], [torch.inf]])
    assert combine(Median(), torch.cat([LINE, broken])) == [2]


def test_a_round_with_too_few_rows_is_skipped():
    with pytest.raises(SkippedRound):
        combine(Krum(f=1), LINE)
    with pytest.raises(SkippedRound):
        combine(Median(), torch.full((2, 1), torch.nan))


def test_nearest_neighbours_are_mixed_before_the_rule():
    mixed = combine(Median(mixing="nnm", f=1), LINE)
    assert mixed == pytest.approx([4 / 3])


def test_buckets_are_drawn_again_in_each_round():
    found = set()
    for number in range(1, 9):
        rule = Median(mixing="bucketing", bucket=2)
        (middle,) = combine(rule, LINE, number)
        assert middle == 3.5  # the mean of two means
        rule = Median(mixing="bucketing", bucket=3)
        found.add(round_to_thirds(*combine(rule, LINE, number)))
    assert len(found) > 1
    of_one = {(14 - alone) / 6 + alone / 2 for alone in (0, 1, 3, 10)}
    assert found <= set(map(round_to_thirds, of_one))


def round_to_thirds(number):
    return round(3 * number)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Median(), 1),
        (Krum(f=2), 7),
        (MultiKrum(f=2), 7),
        (MultiKrum(f=2, m=9), 9),
        (Bulyan(f=2), 11),
        (Krum(f=2, mixing="bucketing", bucket=3), 19),
        (Median(f=2, mixing="nnm"), 5),
    ],
)
def test_the_least_number_of_clients(rule, least):
    assert not rule.find_problem(least)
    assert rule.find_problem(least - 1)


def test_rules_that_tolerate_bad_clients_need_their_number():
    for rule, keys in [(Krum, {}), (Bulyan, {}), (Median, {"mixing": "nnm"})]:
        with pytest.raises(ValueError, match=r"'(krum|bulyan|nnm)' .* f, "):
            rule(**keys)
    with pytest.raises(ValueError, match=r"bucket .*mixing = 'bucketing'"):
        Median(bucket=3)


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        (MultiKrum(f=2), ["16", "18", "14"]),
        (Bulyan(f=2), ["14", "18", "10"]),
        (Median(mixing="bucketing", bucket=4), ["5", "18"]),
        (Median(mixing="nnm", f=3), ["18", "15"]),
    ],
)
def test_a_rule_describes_its_numbers_for_18_clients(rule, numbers):
    words = rule.describe(18).replace(",", "").split()
    assert [number for number in numbers if number not in words] == []
