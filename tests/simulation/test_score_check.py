"""Scores that fail on synthetic logits: one line with the place of the mistake."""

from pathlib import Path

import own_scores
import pytest
import torch
from refusals import expect_refusal

from hpcfl.experiment import measures
from hpcfl.experiment.sections import Evaluation
from hpcfl.simulation.score_check import check_scores

FILE = Path(own_scores.__file__)
MISTAKES = [
    ("Nothing", "class Nothing", "hpcfl.scores.base.Score"),
    ("Unfinished", "class Unfinished", "number"),
    ("WithArguments", "class WithArguments", ": TypeError"),
    ("Better", "class Better", "better = 'higher': "),
    ("Typo", "block.right_by_clas\n", "'sums': AttributeError: 'Block' object "),
    (
        "Mean",
        "class Mean",
        "'sums'",
    ),
    (
        "Unmasked",
        "class Unmasked",
        "block.mask",
    ),
    (
        "Together",
        "class Together",
        "the number of one client depends on other clients",
    ),
    (
        "OneForAll",
        "class OneForAll",
        "[30] for 3 clients; expected [3, width]",
    ),
    (
        "WrongNumber",
        "class WrongNumber",
        "'number': TypeError: ",
    ),
    ("Ranked", "class Ranked", "'number': TypeError: "),
    ("Median", ".medain()", "'summary': AttributeError"),
    (
        "Unsummed",
        "class Unsummed",
        "own_scores:Unsummed, own_scores:Unsummed_median",
    ),
    (
        "Doubled",
        "class Doubled",
        "'std'",
    ),
    ("Mistakes", "class Mistakes", "'clients/COLUMN/correct'"),
    ("Folded", "class Folded", "'folded/right'"),
    ("Halved", "class Halved", "'summary': TypeError: "),
    ("Overwriting", "class Overwriting", "'sums': TypeError: "),
    ("Adding", "class Adding", "'number': TypeError: "),
    ("Unset", "class Unset", "torch.set_default_dtype"),
    ("TwiceAsMany", "class TwiceAsMany", "'clients/COLUMN/total'"),
]


@pytest.mark.parametrize(("name", "fragment", "words"), MISTAKES)
def test_a_mistake_is_located(name, fragment, words):
    with expect_refusal() as caught:
        scores = measures.find_scores(Evaluation(scores=[f"own_scores:{name}"]))
        check_scores(scores, 10, torch.device("cpu"))
    line = FILE.read_text()[: FILE.read_text().index(fragment)].count("\n") + 1
    assert words in str(caught.value)
    assert f"{FILE.name}:{line}: " in str(caught.value)


def test_built_in_scores_and_undefined_sums_pass():
    undefined = measures.find_scores(Evaluation(scores=["own_scores:Undefined"]))
    check_scores(measures.list_built_in() | undefined, 10, torch.device("cpu"))
