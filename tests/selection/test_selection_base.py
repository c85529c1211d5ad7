"""Information of the server, and reports of clients."""

import numpy as np
from selecting import make_known, report

from hpcfl.selection.base import take_cheapest


def test_reports_count_by_client_and_a_loss_that_is_no_number_is_zero():
    """A round's total is Σ samples · loss, with ten samples of each client."""
    reports = report({0: 2.0, 3: np.nan}, {0: 1.0, 5: 0.5})
    np.testing.assert_array_equal(reports.losses, [1, np.nan, np.nan, 0, np.nan, 0.5])
    assert reports.last_rounds.tolist() == [2, 0, 0, 1, 0, 2]
    assert reports.times.tolist() == [2, 0, 0, 1, 0, 1]
    assert reports.totals == [20, 15]
    ids, losses = reports.history
    assert ids.tolist() == [0, 3, 0, 5] and losses.tolist() == [2, 0, 1, 0.5]


def test_candidates_keep_their_places_in_the_order_of_all_clients():
    everyone = make_known(round=3).shuffle().tolist()
    some = make_known(candidates=(1, 0, 1, 1, 0, 1), round=3)
    left = [client for client in everyone if client in (0, 2, 3, 5)]
    assert sorted(everyone) == list(range(6)) and some.shuffle().tolist() == left
    assert some.draw(2).tolist() == left[:2]


def test_the_cheapest_clients_are_taken_and_earlier_ones_win_ties():
    ids, costs = np.array([4, 1, 3, 0]), np.array([2.0, 1.0, 2.0, 3.0])
    assert take_cheapest(ids, costs, 2).tolist() == [1, 4]
