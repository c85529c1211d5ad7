"""Times in the progress line."""

from hpcfl.report.progress import compute_pace


def test_a_starts_first_round_does_not_count_beside_others():
    assert compute_pace([9.0]) == 9 and compute_pace([9.0, 1.0, 3.0]) == 2
