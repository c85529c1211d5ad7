"""The selection of Oort, by hand."""

import numpy as np
import pytest
from selecting import make_known, report

from hpcfl.selection.oort import Oort


def test_the_utilities_of_oort():
    """Samples times loss of clients 0, 1, 2, 4 are 10, 30, 20, 40. The limit is entry
    number ⌊0.95 · 4⌋ = 3, which none exceeds. Relative to the minimum and the range of
    30 they are 0, 2/3, 1/3, 1. In round 3 the uncertainty is √(0.1 ln 3) for round 1
    and √(0.1 ln 3 / 2) for round 2. A third of six clients is within entry number ⌊0.4
    · 6⌋ = 2 of the ticks 10, 20, 30, …, which is 30: client 0 with 50 and client 2 with
    40 are slower.
    """
    losses = report({0: 1.0, 1: 3.0}, {2: 2.0, 4: 4.0})
    facts = make_known(round=3, reports=losses)
    early, late = np.sqrt(0.1 * np.log(3)), np.sqrt(0.1 * np.log(3) / 2)
    expected = [
        early * (30 / 50) ** 2,
        2 / 3 + early,
        (1 / 3 + late) * (30 / 40) ** 2,
        1 + late,
    ]
    oort = Oort(preferred=0.4)
    assert oort.find_time_limit(facts) == 30
    utilities = oort.compute_utilities(facts, np.array([0, 1, 2, 4]))
    assert utilities == pytest.approx(expected, rel=1e-12)


def test_oort_exploits_only_clients_near_the_utility_cutoff():
    """The utilities of the test above are 0.12, 1.0, 0.32, 1.23. The last of the best
    two is client 1, and no other client has 95 % of its utility.
    """
    losses = report({0: 1.0, 1: 3.0}, {2: 2.0, 4: 4.0})
    facts = make_known(round=3, reports=losses)
    assert set(Oort(preferred=0.4, explore=0.0).choose(facts, 2)) == {1, 4}


def test_oort_explores_a_share_and_fills_up():
    """0.9 of ten clients are nine new ones. If only clients 3 and 5 are new, the others
    have taken part before, and vice versa.
    """
    losses = report(
        {
            0: 1.0,
            1: 3.0,
            2: 2.0,
            4: 4.0,
        }
    )
    chosen = Oort().choose(make_known(round=2, reports=losses), 4)
    assert len(set(chosen)) == 4 and {3, 5} <= set(chosen)
    first = Oort(explore=0.0).choose(make_known(), 4)
    assert len(set(first)) == 4
    assert Oort().compute_share(1) == 0.9 and Oort().compute_share(2) == 0.9 * 0.98
    assert Oort().compute_share(1000) == 0.2
    assert Oort(explore=0.1).compute_share(9) == 0.1


def test_oort_explores_in_proportion_to_speed():
    """One of two new clients, the first nine times as fast, in 1,000 rounds: 900 times,
    with a standard deviation of 9.5.
    """
    times = 0
    for round in range(1, 1001):
        facts = make_known((1, 1, 0, 0, 0, 0), round, ticks=[10, 90, 1, 1, 1, 1])
        times += int(Oort().choose(facts, 1)[0] == 0)
    assert abs(times - 900) < 4 * 9.5


def test_the_pacer_lets_slower_clients_in_when_less_is_learnt():
    """In windows of two rounds the totals are 60 + 50, 30 + 40, 90 + 90 and 90 + 90:
    the second is smaller than the first, the third larger, the fourth equal. So in
    round 5 and from round 9 on the quantile is one step higher, ⌊0.5 · 6⌋ = 3 at 0.45
    and 0.5.
    """
    rounds = [{0: total / 10.0} for total in (60, 50, 30, 40, 90, 90, 90, 90)]
    oort = Oort(window=2, preferred=0.45)

    def limits(upto):
        return oort.find_time_limit(
            make_known(round=upto + 1, reports=report(*rounds[:upto]))
        )

    assert [limits(upto) for upto in (0, 3, 4, 7, 8)] == [30, 30, 40, 40, 40]
