"""Times in the progress line."""

import math

from hpcfl.report.progress import compute_pace, describe_number
from hpcfl.scores.metric_names import Measure


def test_a_starts_first_round_does_not_count_beside_others():
    assert compute_pace([9.0]) == 9 and compute_pace([9.0, 1.0, 3.0]) == 2


def test_a_number_of_no_client_is_described():
    measure = Measure("accuracy", "weighted", "weighted", unit="%")
    assert "no client" in describe_number(measure, math.nan)


def test_a_summary_over_clients_is_named():
    measure = Measure("accuracy", "worst_tenth", "worst_tenth", unit="%")
    assert "worst tenth" in describe_number(measure, 0.5)
