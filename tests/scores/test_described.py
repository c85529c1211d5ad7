"""What an experiment and a reader call a score, and the number that is meant."""

import pytest

from hpcfl.experiment import measures
from hpcfl.scores.described import resolve

BUILT_IN = measures.describe(measures.built_in())


@pytest.mark.parametrize(
    ("wanted", "recorded"),
    [
        ("weighted", "weighted"),
        ("mean", "mean"),
        ("worst_tenth", "worst_tenth"),
        ("pm_v", "pm_v"),
        ("pm_l", "pm_l"),
        ("accuracy", "weighted"),
        ("accuracy/mean", "mean"),
        ("macro_f1", "macro_f1"),
        ("macro_f1/mean", "macro_f1"),
        ("macro_f1/worst_tenth", "macro_f1_worst_tenth"),
        ("macro_f1_worst_tenth", "macro_f1_worst_tenth"),
        ("loss", "loss"),
    ],
)
def test_a_number_by_its_names(wanted, recorded):
    assert resolve(wanted, BUILT_IN).recorded == recorded


@pytest.mark.parametrize(
    "wanted", ["macro_f2", "macro_f1/best", "weighted/mean", "", "/"]
)
def test_what_is_no_number_of_a_score(wanted):
    assert resolve(wanted, BUILT_IN) is None


def test_how_numbers_are_shown_and_which_are_better():
    accuracy, loss = resolve("mean", BUILT_IN), resolve("loss", BUILT_IN)
    assert accuracy.shown(0.98765) == "98.77" and loss.shown(0.98765) == "0.9877"
    assert accuracy.rank(2) > accuracy.rank(1) and loss.rank(1) > loss.rank(2)
    assert resolve("std", BUILT_IN).better == "down"  # clients that are alike
