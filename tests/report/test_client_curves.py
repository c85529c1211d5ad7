"""Clients' own curves in few letters."""

import numpy as np
import pytest

from hpcfl.report import client_curves
from hpcfl.report.client_curves import ALL, FEWEST, LETTERS, MOST

NAN = float("nan")


def heights(letters):
    return [
        64 * LETTERS.index(one) + LETTERS.index(other)
        for one, other in zip(letters[::2], letters[1::2], strict=True)
    ]


def test_two_letters_are_a_height_on_the_axis():
    """The axis goes from 0 to 100, so that 25 is a quarter of 4094, and 75 three
    quarters.
    """
    rounds, numbers = (
        np.array([1, 3, 5]),
        np.array([[0.0, 25.0], [100.0, NAN], [75.0, 0.0]]),
    )
    found = client_curves.make(
        {"a": {0: (rounds, numbers)}, "b": {1: (rounds[:2], numbers[:2, :1])}}
    )
    assert found.rounds == [0, 500, 1000] and (found.y.low, found.y.high) == (0, 100)
    curves = dict(curve.split(":") for curve in found.of_rows["a"].split())
    assert heights(curves["0.0"]) == [0, 4094, 3070] and curves["0.0"][:4] == "AA_-"
    assert heights(curves["0.1"]) == [1024, 4095, 0]
    assert found.of_rows["b"] == "1.0:AA_-__"  # it has not been scored in round 5


def test_many_rounds_are_thinned_and_too_many_clients_have_no_curves():
    rounds = np.arange(1, 1001)
    found = client_curves.make(
        {"a": {0: (rounds, np.random.default_rng(0).random((1000, 2)))}}
    )
    assert (
        len(found.rounds) == MOST and found.rounds[0] == 0 and found.rounds[-1] == 1000
    )
    few = client_curves.make({"a": {0: (rounds, np.ones((1000, ALL // 20)))}})
    assert len(few.rounds) == 20
    assert (
        client_curves.make({"a": {0: (rounds, np.ones((1000, ALL // (FEWEST - 1))))}})
        is None
    )


@pytest.mark.parametrize(
    "numbers", [np.full((3, 2), NAN), np.array([[1.0], [NAN], [NAN]]), np.empty((3, 0))]
)
def test_without_two_rounds_there_are_none(numbers):
    assert client_curves.make({"a": {0: (np.arange(1, 4), numbers)}}) is None
    assert client_curves.make({"a": {}}) is None
