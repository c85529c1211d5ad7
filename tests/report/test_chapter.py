"""Costs by hand, and the ids of a page's figures."""

import re

import numpy as np
import pytest
from made_up import run
from matplotlib.figure import Figure

from hpcfl.report import chapter


def test_costs_are_means_without_the_first_round_and_the_sum_of_all():
    """Rounds take 0.1, 0.2, 0.3 s: 0.25 without the first, 0.6 in all; of two runs one
    knows no bytes.
    """
    one, other = run(), run(seed=1)
    one.results.values["bytes_up"] = np.array([9e6, 1e6, 3e6])
    one.results.values["bytes_down"] = np.zeros(3)  # as on a single rank
    table = chapter.tabulate_costs({"fedavg": [one, other]})
    found = table.texts.loc["fedavg"]
    assert (found["s/round"], found["MB up"], found["MB down"]) == ("0.25", "2", "–")
    assert (found["whole run"], found["floats up"]) == ("0:01", "–")


@pytest.mark.parametrize("rounds", [1, 0])
def test_of_too_few_rounds_there_is_no_mean(rounds):
    one = run()
    if rounds:
        one = run(accuracy=(0.5,))
    else:
        del one.results.values["seconds/round"]
    found = chapter.tabulate_costs({"fedavg": [one]}).texts.loc["fedavg"]
    assert found.get("s/round", "–") == "–"
    assert found["whole run"] == ("0:00" if rounds else "–")


def test_ids_differ_from_those_of_another_figure():
    ids = []
    for name in ("one", "another"):
        figure = Figure()
        figure.subplots().plot([1, 2], [3, 4], marker="o")
        svg = chapter.as_svg(figure, name)
        found = set(re.findall(r' id="([^"]+)"', svg))
        assert found and set(re.findall(r"[(\"]#([\w.-]+)", svg)) <= found
        ids.append(found)
    assert not ids[0] & ids[1]
