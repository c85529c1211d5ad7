"""Selection of the fastest clients, by hand."""

import pytest
from selecting import TICKS, make_known, report

from hpcfl.selection.fastest import Fastest
from hpcfl.selection.power_of_choice import PowerOfChoice
from hpcfl.selection.uniform import Uniform


@pytest.mark.parametrize("kind", [Fastest, PowerOfChoice])
def test_as_many_candidates_as_chosen_are_the_uniform_choice(kind):
    losses = report({client: float(client) for client in range(6)})
    for round in range(1, 20):
        facts = make_known(round=round, reports=losses)
        chosen = kind(candidates=1.0).choose(facts, 3)
        assert set(chosen) == set(Uniform().choose(facts, 3))


def test_the_fastest_of_all_and_of_twice_as_many():
    assert Fastest(candidates=3.0).choose(make_known(), 2).tolist() == [1, 3]
    drawn = Uniform().choose(make_known(), 4)
    best = sorted(drawn, key=lambda client: TICKS[client])
    assert Fastest().choose(make_known(), 2).tolist() == best[:2]
