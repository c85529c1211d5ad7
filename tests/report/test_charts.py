"""Where lines, dots and marks lie."""

import numpy as np
import pytest

from hpcfl.report import charts
from hpcfl.report.series import Curve
from hpcfl.report.style import Look

LOOKS = {"a": Look("#111111", (0, (4, 1.5)), "o"), "b": Look("#222222", (0, ()), "s")}


def curve(*mean: float, std: float = 0.0, runs: int = 2) -> Curve:
    rounds = np.arange(1, len(mean) + 1)
    return Curve(
        rounds, rounds.astype(float), np.array(mean), np.full(len(mean), std), runs
    )


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.13, 0.58, ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]),
        (31, 97, ["30", "40", "50", "60", "70", "80", "90", "100"]),
        (0, 7.2e6, ["0", "1M", "2M", "3M", "4M", "5M", "6M", "7M", "8M"]),
    ],
)
def test_marks_are_round_numbers(low, high, texts):
    found = charts.axis(low, high)
    assert [text for _, text in found.ticks] == texts
    assert found.ticks[0][0] == 0 and found.ticks[-1][0] == pytest.approx(100)


def test_an_exact_axis_ends_where_it_is_told_and_rounds_are_whole():
    found = charts.axis(1, 3, exact=True, least=1)
    assert (found.low, found.high, found.ticks) == (
        1,
        3,
        [(0, "1"), (50, "2"), (100, "3")],
    )
    assert (
        charts.axis(5, 5).low < 5 < charts.axis(5, 5).high and charts.axis(0, 0).ticks
    )


def test_lines_and_bands():
    """Means 20 and 40 with a deviation of 10 on an axis from 10 to 50, upside down as
    SVG is.
    """
    of_rows = {"a": curve(20, 40, std=10), "b": curve(30, 30, runs=1)}
    found = charts.curves("rounds", "round", of_rows, LOOKS, ".1f")
    assert (found.y.low, found.y.high) == (10, 50)
    first, second = found.lines
    assert (first.path, first.band) == (
        "M0 750L1000 250",
        "M0 500L1000 0L1000 500L0 1000Z",
    )
    assert first.end == "40.0" and first.colour == "#111111" and second.band == ""
    assert (first.dash, second.dash) == (
        "8 3",
        "",
    )  # a colour is not all that sets them apart


def test_a_band_does_not_reach_below_what_a_number_can_be():
    assert (
        charts.curves("rounds", "round", {"a": curve(1, 9, std=5)}, LOOKS, "g").y.low
        == 0
    )


def test_no_points_no_chart():
    assert charts.curves("rounds", "round", {"a": curve()}, LOOKS, "g") is None
    assert charts.spread({"a": {0: np.array([np.nan])}}, LOOKS, ["seed=0"]) is None


def test_every_client_has_a_dot_in_the_row_of_its_method():
    found = charts.spread(
        {
            "a": {0: np.array([0, 50, np.nan]), 1: np.array([50, 100, 50])},
            "b": {0: np.array([100, 100, 100])},
        },
        LOOKS,
        ["seed=0", "seed=1"],
    )
    dots = {dot.clients: dot.path for dot in found.strips[0].dots}
    assert dots == {
        "0.0": "M0.0 250.0h0",
        "0.1": "M500.0 250.0h0",
        "1.0": "M500.0 330.0h0",
        "1.2": "M500.0 170.0h0",
        "1.1": "M1000.0 250.0h0",
    }
    assert found.strips[0].median == "M500.0 40.0v420.0"
    assert {dot.path for dot in found.strips[1].dots} == {
        "M1000.0 750.0h0",
        "M1000.0 830.0h0",
        "M1000.0 670.0h0",
    }


def test_many_clients_share_dots_and_are_counted():
    found = charts.spread({"a": {0: np.full(5000, 1.0)}}, LOOKS, ["seed=0"])
    dots = found.strips[0].dots
    assert (
        len(dots) == charts.STACK
        and sum(len(dot.clients.split()) + dot.more for dot in dots) == 5000
    )
