"""Who is chosen, by hand."""

import numpy as np
import pytest

from hpcfl.clock.draws import Draws
from hpcfl.clock.selection._reports import LossReports
from hpcfl.clock.selection.base import Known, Selection
from hpcfl.clock.selection.fastest import Fastest
from hpcfl.clock.selection.oort import Oort
from hpcfl.clock.selection.power_of_choice import PowerOfChoice
from hpcfl.clock.selection.uniform import Uniform
from hpcfl.errors import UserError
from hpcfl.rows import randomness

TICKS = [50, 10, 40, 20, 30, 60]


def known(candidates=(1, 1, 1, 1, 1, 1), round=1, told=None, ticks=TICKS):
    """What a server of six clients knows, each with ten samples."""
    samples = np.full(6, 10)
    return Known(
        (round,),
        4,
        np.array(candidates, bool),
        samples,
        np.array(ticks),
        told or LossReports(samples),
    )


def told(*rounds):
    """``rounds``: of each the losses by client."""
    heard = LossReports(np.full(6, 10))
    for losses in rounds:
        heard.hear(np.array(list(losses)), np.array(list(losses.values())))
    return heard


def test_what_is_told():
    heard = told({0: 2.0, 3: np.nan}, {0: 1.0, 5: 0.5})
    np.testing.assert_array_equal(heard.losses, [1, np.nan, np.nan, 0, np.nan, 0.5])
    assert heard.heard.tolist() == [2, 0, 0, 1, 0, 2]
    assert heard.times.tolist() == [2, 0, 0, 1, 0, 1]
    assert heard.totals == [20, 15]
    ids, losses = heard.history
    assert ids.tolist() == [0, 3, 0, 5] and losses.tolist() == [2, 0, 1, 0.5]


def test_what_was_told_once_is_never_written_to_again():
    """More than the array that it begins with has room for."""
    heard = told()
    heard.hear(np.arange(6), np.arange(6.0))
    _, before = heard.history
    for _ in range(20):
        heard.hear(np.arange(6), np.zeros(6))
    assert before.tolist() == [0, 1, 2, 3, 4, 5]
    assert heard.history[1].tolist() == [0, 1, 2, 3, 4, 5] + [0] * 120


def test_the_uniform_choice_is_the_beginning_of_one_order_of_all_clients():
    order = randomness.permutation(6, 4, "cohort", 1).tolist()
    assert Uniform().choose(known(), 4).tolist() == order[:4]
    left = [client for client in order if client not in (0, 1)]
    some = known(candidates=(0, 0, 1, 1, 1, 1))
    assert Uniform().choose(some, 3).tolist() == left[:3]


def test_of_very_many_clients_only_those_are_drawn_that_are_asked_for(monkeypatch):
    """Uniformly: of 400 draws of two of four candidates each is in half, ± 4 σ = 40."""
    monkeypatch.setattr("hpcfl.clock.selection.base.MANY", 5)
    times = np.zeros(6, int)
    for round in range(400):
        drawn = known(candidates=(0, 1, 1, 0, 1, 1), round=round).drawn(2)
        assert len(set(drawn.tolist())) == 2
        times[drawn] += 1
    assert times[[0, 3]].tolist() == [0, 0]
    assert (abs(times[[1, 2, 4, 5]] - 200) < 40).all()
    assert len(known(candidates=(0, 1, 0, 0, 0, 0)).drawn(2)) == 1
    again = known().drawn(3), known().drawn(3)
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize("kind", [Fastest, PowerOfChoice])
def test_as_many_candidates_as_chosen_are_the_uniform_choice(kind):
    losses = told({client: float(client) for client in range(6)})
    for round in range(1, 20):
        facts = known(round=round, told=losses)
        chosen = kind(candidates=1.0).choose(facts, 3)
        assert set(chosen) == set(Uniform().choose(facts, 3))


def test_the_fastest_of_all_and_of_twice_as_many():
    assert Fastest(candidates=3.0).choose(known(), 2).tolist() == [1, 3]
    drawn = Uniform().choose(known(), 4)
    best = sorted(drawn, key=lambda client: TICKS[client])
    assert Fastest().choose(known(), 2).tolist() == best[:2]


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


def test_the_utilities_of_oort():
    """Samples times loss of clients 0, 1, 2, 4 are 10, 30, 20, 40. Cut off at the entry
    number ⌊0.95 · 4⌋ = 3, none is; from the least and in the range of 30 they are 0, 2/3,
    1/3, 1. In round 3 the uncertainty is √(0.1 ln 3) of round 1 and √(0.1 ln 3 / 2) of
    round 2. A third of six clients is within the ticks number ⌊0.4 · 6⌋ = 2 of 10, 20,
    30, …, which is 30: client 0 with 50 and client 2 with 40 are slower.
    """
    losses = told({0: 1.0, 1: 3.0}, {2: 2.0, 4: 4.0})
    facts = known(round=3, told=losses)
    early, late = np.sqrt(0.1 * np.log(3)), np.sqrt(0.1 * np.log(3) / 2)
    expected = [
        early * (30 / 50) ** 2,
        2 / 3 + early,
        (1 / 3 + late) * (30 / 40) ** 2,
        1 + late,
    ]
    oort = Oort(preferred=0.4)
    assert oort.limit(facts) == 30
    utilities = oort.utilities(facts, np.array([0, 1, 2, 4]))
    assert utilities == pytest.approx(expected, rel=1e-12)


def test_oort_takes_only_who_is_nearly_as_good_as_the_last_of_the_best():
    """The utilities of the test above are 0.12, 1.0, 0.32, 1.23: of two the last is
    client 1, and nobody else has 95 % of its utility.
    """
    losses = told({0: 1.0, 1: 3.0}, {2: 2.0, 4: 4.0})
    facts = known(round=3, told=losses)
    assert set(Oort(preferred=0.4, explore=0.0).choose(facts, 2)) == {1, 4}


def test_oort_explores_a_share_and_fills_up():
    """0.9 of ten are nine new ones; where only clients 3 and 5 are new the others are
    those who took part, and the other way round.
    """
    losses = told(
        {
            0: 1.0,
            1: 3.0,
            2: 2.0,
            4: 4.0,
        }
    )
    chosen = Oort().choose(known(round=2, told=losses), 4)
    assert len(set(chosen)) == 4 and {3, 5} <= set(chosen)
    first = Oort(explore=0.0).choose(known(), 4)
    assert len(set(first)) == 4
    assert Oort().share(1) == 0.9 and Oort().share(2) == 0.9 * 0.98
    assert Oort().share(1000) == 0.2 and Oort(explore=0.1).share(9) == 0.1


def test_oort_explores_in_proportion_to_speed():
    """One of two new clients, of whom the first is nine times as fast, in 1,000 rounds:
    900 times, with a standard deviation of 9.5.
    """
    times = 0
    for round in range(1, 1001):
        facts = known((1, 1, 0, 0, 0, 0), round, ticks=[10, 90, 1, 1, 1, 1])
        times += int(Oort().choose(facts, 1)[0] == 0)
    assert abs(times - 900) < 4 * 9.5


def test_the_pacer_lets_slower_clients_in_when_less_is_learnt():
    """In windows of two rounds the totals are 60 + 50, 30 + 40, 90 + 90 and 90 + 90: the
    second is less than the first, the third more, the fourth no more. So in round 5 and
    from round 9 on the quantile is one step higher, ⌊0.5 · 6⌋ = 3 at 0.45 and 0.5.
    """
    rounds = [{0: total / 10.0} for total in (60, 50, 30, 40, 90, 90, 90, 90)]
    oort = Oort(window=2, preferred=0.45)

    def limits(upto):
        return oort.limit(known(round=upto + 1, told=told(*rounds[:upto])))

    assert [limits(upto) for upto in (0, 3, 4, 7, 8)] == [30, 30, 40, 40, 40]


class Chosen(Selection):
    """A user's own, which chooses what it is told to."""

    ids: list[int]

    def choose(self, known, count):
        return self.ids


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([0, 1, 2, 3], "4 clients, at most 3"),
        ([6], "a client that there is not, of 6"),
        ([-1], "a client that there is not"),
        ([1, 5], "client 5, who is not there"),
        ([1, 1], "a client more than once"),
        ([], "nobody"),
    ],
)
def test_what_a_selection_may_not_choose(ids, problem):
    draws = Draws(Chosen(select="mine:Chosen", ids=ids), 6, 4)
    candidates = np.array([1, 1, 1, 1, 1, 0], bool)
    with pytest.raises(
        UserError,
        match=f"test_who_is_chosen.py:.*select = 'mine:Chosen': chose {problem}",
    ):
        draws.choose(candidates, 3, (1,))


def test_a_selection_that_returns_no_list_of_ids():
    class Wrong(Selection):
        def choose(self, known, count):
            return known.candidates[:, None]

    with pytest.raises(UserError, match=r"chose bool of shape \(6, 1\), not a list"):
        Draws(Wrong(), 6, 4).choose(np.ones(6, bool), 3, (1,))
