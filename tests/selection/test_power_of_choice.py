"""Power-of-choice, by hand."""

import numpy as np
from selecting import known, told

from hpcfl.selection.power_of_choice import PowerOfChoice
from hpcfl.selection.uniform import Uniform


def test_power_of_choice_takes_who_never_told_and_then_large_losses():
    """Client 4 has told nothing; of the others 2 has 3.0 and 0 has 2.0."""
    losses = told(
        {
            0: 2.0,
            1: 0.5,
            2: 3.0,
            3: 1.0,
            5: np.inf,
        }
    )
    chosen = PowerOfChoice(candidates=2.0).choose(known(told=losses), 3)
    assert chosen.tolist() == [4, 2, 0]


def test_power_of_choice_draws_candidates_first():
    losses = told({client: float(client) for client in range(6)})
    for round in range(1, 9):
        facts = known(round=round, told=losses)
        drawn = sorted(Uniform().choose(facts, 4), reverse=True)
        assert PowerOfChoice().choose(facts, 2).tolist() == drawn[:2]


def test_what_is_told():
    heard = told({0: 2.0, 3: np.nan}, {0: 1.0, 5: 0.5})
    np.testing.assert_array_equal(heard.losses, [1, np.nan, np.nan, 0, np.nan, 0.5])
    assert heard.heard.tolist() == [2, 0, 0, 1, 0, 2]
    assert heard.times.tolist() == [2, 0, 0, 1, 0, 1]
    assert heard.totals == [20, 15]
    ids, losses = heard.history
    assert ids.tolist() == [0, 3, 0, 5] and losses.tolist() == [2, 0, 1, 0.5]
