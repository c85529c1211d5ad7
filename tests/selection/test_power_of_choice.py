"""Power-of-choice, by hand."""

import numpy as np
from selecting import make_known, report

from hpcfl.selection.power_of_choice import PowerOfChoice
from hpcfl.selection.uniform import Uniform


def test_power_of_choice_takes_clients_without_reports_and_then_large_losses():
    """Client 4 has no report; of the others client 2 has 3.0 and client 0 has 2.0."""
    losses = report(
        {
            0: 2.0,
            1: 0.5,
            2: 3.0,
            3: 1.0,
            5: np.inf,
        }
    )
    chosen = PowerOfChoice(candidates=2.0).choose(make_known(reports=losses), 3)
    assert chosen.tolist() == [4, 2, 0]


def test_power_of_choice_draws_candidates_first():
    losses = report({client: float(client) for client in range(6)})
    for round in range(1, 9):
        facts = make_known(round=round, reports=losses)
        drawn = sorted(Uniform().choose(facts, 4), reverse=True)
        assert PowerOfChoice().choose(facts, 2).tolist() == drawn[:2]
