"""What runs cost, by hand."""

import numpy as np
import pytest
from made_up import run

from hpcfl.report import costs


def test_means_without_the_first_round_and_the_sum_of_all():
    """Rounds take 0.1, 0.2, 0.3 s: 0.25 without the first, 0.6 in all; of two runs one
    knows no bytes.
    """
    one, other = run(), run(seed=1)
    one.results.values["bytes_up"] = np.array([9e6, 1e6, 3e6])
    one.results.values["bytes_down"] = np.zeros(3)  # as on a single rank
    headings, rows = costs.table({"fedavg": [one, other]})
    found = dict(zip(["method", *headings], rows[0], strict=True))
    assert (found["method"], found["s/round"], found["MB up"], found["MB down"]) == (
        "fedavg",
        "0.250",
        "2.00",
        "–",
    )
    assert found["whole run"] == "0:01" and found["floats up"] == "–"


@pytest.mark.parametrize("rounds", [1, 0])
def test_of_too_few_rounds_there_is_no_mean(rounds):
    one = run(accuracy=(0.5,) * max(rounds, 1))
    if not rounds:
        del one.results.values["seconds/round"]
    headings, rows = costs.table({"fedavg": [one]})
    assert rows[0][1 + headings.index("s/round")] == "–"
    assert rows[0][1 + headings.index("whole run")] == ("0:00" if rounds else "–")
