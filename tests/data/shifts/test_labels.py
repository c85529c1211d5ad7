"""Permuted labels: heterogeneity.md H2."""

import pytest
import torch
from refusals import expect_refusal

from hpcfl.data.shifts.base import Facts
from hpcfl.data.shifts.labels import Labels

CLASSES = 5


def permutations(**keys):
    """Return the new labels of each group by its name."""
    facts = Facts(0, 1, 4, 0, (3,), torch.float32, 1.0, CLASSES)
    return {
        concept.name: None if concept.labels is None else concept.labels.tolist()
        for concept in Labels(**keys).concepts(facts)
    }


def test_the_kinds_of_permutations_by_hand():
    assert permutations(groups=3) == {
        "y": None,
        "y + 1": [1, 2, 3, 4, 0],
        "y + 2": [2, 3, 4, 0, 1],
    }
    assert permutations(how="reverse") == {"y": None, "K − 1 − y": [4, 3, 2, 1, 0]}
    assert permutations(how="swap", swaps=[[1, 2], [0, 4, 1, 3]]) == {
        "y": None,
        "1 ↔ 2": [0, 2, 1, 3, 4],
        "0 ↔ 4, 1 ↔ 3": [4, 3, 2, 1, 0],
    }


def test_several_kinds_follow_one_another_as_in_fedrc():
    assert list(permutations(how=["reverse", "shift"])) == ["y", "K − 1 − y", "y + 1"]


def test_random_permutations_are_bijections_that_their_group_keys():
    few, many = (
        permutations(how="random", groups=3),
        permutations(how="random", groups=6),
    )
    for name, labels in many.items():
        assert labels is None or sorted(labels) == list(range(CLASSES))
        assert few.get(name, labels) == labels
    assert many["permuted 1"] != many["permuted 2"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"groups": 6}, "groups: 6 .* 5, "),
        ({"how": "swap"}, "swaps: how = 'swap' "),
        ({"how": "swap", "swaps": [[1]]}, r"swaps: \[1\] "),
        ({"how": "swap", "swaps": [[1, 1]]}, r"swaps: \[1, 1\] "),
        ({"how": "swap", "swaps": [[1, 5]]}, r"swaps: \[1, 5\]: "),
    ],
)
def test_invalid_permutations_are_refused(keys, expected):
    with expect_refusal(rf"shift.0.{expected}"):
        permutations(**keys)
