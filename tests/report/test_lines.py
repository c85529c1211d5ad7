"""Means over repetitions by rounds, seconds and floats."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import run

from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import curves


def mean(runs, axis):
    """Return the line of repetitions over an axis, of the primary metric."""
    return curves.list_over_axis(arrange(runs), "weighted", axis)


def test_rounds_count_that_all_repetitions_have():
    long, short = (
        run(seed=0, accuracy=(0.2, 0.4, 0.6)),
        run(seed=1, accuracy=(0.4, 0.6)),
    )
    assert mean([long, short], "rounds")["mean"].tolist() == pytest.approx([30, 50])
    long.results.values["pre/weighted"][0] = np.nan
    assert mean([long, short], "rounds")["x"].tolist() == [1]
    del long.results.values.of_rounds["pre/weighted"]
    assert not len(mean([long, short], "rounds")["x"])


def test_costs_are_cumulated_until_the_scored_models_exist():
    """Rounds take 0.1, 0.2, 0.3 s. The server sends 30 floats, and participating
    clients send 10 and 20.
    """
    before = run()
    after = replace(before, score="post")
    after.results.values.of_rounds["post/weighted"] = np.full(3, 0.5)
    assert mean([before], "seconds")["x"].tolist() == pytest.approx([0, 0.1, 0.3])
    assert mean([after], "seconds")["x"].tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert not len(mean([before], "floats")["x"])  # the floats down were not recorded
    before.results.values.of_rounds["floats_down"] = np.full(3, 30.0)
    before.results.values.columns["clients/floats_up"] = np.array(
        [10, np.nan, 20, 20, np.nan, np.nan]
    )
    assert mean([before], "floats")["x"].tolist() == [0, 40, 90]
    assert mean([after], "floats")["x"].tolist() == [40, 90, 120]
    assert mean([before], "bits")["x"].tolist() == [0, 32 * 40, 32 * 90]
    # to the participating clients
    before.results.values.of_rounds["recorded/bits_down"] = np.full(3, 100.0)
    assert mean([before], "bits")["x"].tolist() == [0, 420, 840 + 320]


def test_numbers_that_cannot_be_drawn_are_left_out():
    assert mean([run(accuracy=(0.5, np.inf, 1e300))], "rounds")["x"].tolist() == [0]
