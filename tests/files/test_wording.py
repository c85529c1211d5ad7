"""Names and numbers out of a user's file, compared and in messages."""

import numpy as np
import pytest

from hpcfl.files import wording


def test_a_long_name_is_shortened_and_printable():
    assert wording.shorten("a\nb") == "a\\nb"
    assert len(wording.shorten("x" * 10**6)) == wording.LETTERS + 1


def test_many_names_are_counted():
    assert wording.list_names(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert wording.list_names([]) == ""


def test_two_spellings_of_a_name_are_one():
    assert wording.fold("Cat 1") == wording.fold("cat1")
    assert wording.fold("\u00e9") == wording.fold("e\u0301")
    assert wording.fold("1") != wording.fold("01")


@pytest.mark.parametrize(
    ("array", "place"),
    [
        ([[1.0, 2.0], [3.0, np.nan]], "[1, 1] is nan"),
        ([np.inf, np.nan], "[0] is inf"),
        ([0.0, -np.inf], "[1] is -inf"),
        ([0.0, 1e39], "[1] is 1e+39"),
        ([0.0, 3e38], ""),
        ([], ""),
        ([1, 2], ""),
    ],
)
def test_the_first_number_that_is_none_has_its_place(array, place):
    assert wording.describe_nonfinite(np.array(array)) == place
