"""Scores that fail on made-up logits: one line with the place of the mistake."""

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
    (
        "Mean",
        "class Mean",
        "the sums of two blocks do not add up to the sums of both blocks together; 'sums' must",
    ),
    (
        "Unmasked",
        "class Unmasked",
        "the sums depend on samples that block.mask excludes",
    ),
    (
        "Together",
        "class Together",
        "the sums of one client depend on other clients",
    ),
    (
        "OneForAll",
        "class OneForAll",
        "it returns a tensor of shape [30] for 3 clients; expected [3, width]",
    ),
    (
        "WrongNumber",
        "class WrongNumber",
        "fails in 'number': TypeError: it returns a tensor of shape [] for 3 clients",
    ),
    ("Median", ".medain()", "fails in 'summary': AttributeError"),
    (
        "Unsummed",
        "class Unsummed",
        "expected a float for each of own_scores:Unsummed, own_scores:Unsummed_median",
    ),
    (
        "Doubled",
        "class Doubled",
        "both record 'std'",
    ),
    ("Mistakes", "class Mistakes", "both record 'clients/COLUMN/correct'"),
    ("TwiceAsMany", "class TwiceAsMany", "both record 'clients/COLUMN/total'"),
]


@pytest.mark.parametrize(("name", "fragment", "words"), MISTAKES)
def test_a_mistake_is_located(name, fragment, words):
    scores = measures.asked(Evaluation(scores=[f"own_scores:{name}"]))
    with expect_refusal() as caught:
        check_scores(scores, 10, torch.device("cpu"))
    line = FILE.read_text()[: FILE.read_text().index(fragment)].count("\n") + 1
    assert words in str(caught.value)
    assert f"{FILE.name}:{line}: " in str(caught.value)


def test_built_in_scores_pass():
    check_scores(measures.built_in(), 10, torch.device("cpu"))
