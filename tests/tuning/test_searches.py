"""Line of a method over repeated searches, from synthetic scores of final runs."""

import math

import numpy as np
from refusals import expect_refusal

from hpcfl.report import variance
from hpcfl.tuning import plan, searches

TABLE = {
    "training": {"validation": 0.2},
    "tune": {
        "methods": ["fedavg"],
        "budget": 1000,
        "searches": 3,
        "search_seeds": [7],
        "final_seeds": [0, 1, 2],
        "search": {"training.lr": {"low": 0.01, "high": 1.0}},
    },
}


def test_a_method_has_the_components_of_its_searches(tmp_path):
    """The third search has no final run on the last partition."""
    scores = 0.5 + 0.1 * np.random.default_rng(0).random((3, 3))
    scores[2, 2] = np.nan
    tested = {
        f"fedavg,search={search},tuned,seed={seed}": scores[search, seed]
        for search, seed in np.argwhere(np.isfinite(scores))
    }
    tuning = plan.read(TABLE, "t.toml")
    line = searches.describe(tuning, tmp_path, "fedavg", tested)
    found = variance.estimate(scores)
    assert (line["searches"], line["partitions"]) == (3, 3)
    assert line["mean"] == found.mean and line["half"] == found.compute_half_width()
    assert line["training"] == found.training and line["spent/budget"] == 0
    nothing = searches.describe(tuning, tmp_path, "fedavg", {})
    assert nothing["searches"] == 0 and math.isnan(nothing["mean"])


def test_without_statsmodels_nothing_is_searched(monkeypatch):
    monkeypatch.setattr(variance, "find_spec", lambda name: None)
    with expect_refusal("statistics"):
        plan.read(TABLE, "t.toml")
    plan.read(TABLE, "t.toml", "fedavg,search=0,untuned,seed=7")
