"""Uniform selection."""

import numpy as np
from selecting import make_known

from hpcfl.rows import randomness
from hpcfl.selection.uniform import Uniform


def test_the_uniform_choice_is_the_beginning_of_one_order_of_all_clients():
    order = randomness.permutation(6, 4, "cohort", 1).tolist()
    assert Uniform().choose(make_known(), 4).tolist() == order[:4]
    left = [client for client in order if client not in (0, 1)]
    some = make_known(candidates=(0, 0, 1, 1, 1, 1))
    assert Uniform().choose(some, 3).tolist() == left[:3]


def test_only_requested_clients_are_drawn_of_many(monkeypatch):
    """The draws are uniform: of 400 draws of two of four candidates each is in half, ±
    4 σ = 40.
    """
    monkeypatch.setattr("hpcfl.selection.base.MANY", 5)
    times = np.zeros(6, int)
    for round in range(400):
        drawn = make_known(candidates=(0, 1, 1, 0, 1, 1), round=round).draw(2)
        assert len(set(drawn.tolist())) == 2
        times[drawn] += 1
    assert times[[0, 3]].tolist() == [0, 0]
    assert (abs(times[[1, 2, 4, 5]] - 200) < 40).all()
    assert len(make_known(candidates=(0, 1, 0, 0, 0, 0)).draw(2)) == 1
    again = make_known().draw(3), make_known().draw(3)
    np.testing.assert_array_equal(*again)
