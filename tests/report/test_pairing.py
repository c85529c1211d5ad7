"""Rows against each UNSCORED on invented runs of six clients: as many pairs are enough
for two rows.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.report.pairing import note
from hpcfl.report.reading import of_clients
from hpcfl.scores._described import Measure
from hpcfl.storage.results import Results

ACCURACY = Measure("accuracy", "mean", "mean", "%", "up")
COUNTS = np.full((6, 2), 10)


def run(accuracies, column="pre", counts=COUNTS):
    """A run of T rounds: ``accuracies`` [T, 6], of 20 test samples each."""
    right = 20 * np.array(accuracies, float)
    values = {
        f"clients/{column}/correct": right,
        f"clients/{column}/total": np.full(right.shape, 20.0),
        f"{column}/mean": np.nanmean(right, axis=1) / 20,
    }
    results = Results(
        static={"test_counts": counts},
        rounds=np.arange(1, len(right) + 1),
        values=values,
    )
    best = {"round": int(np.nanargmax(np.nanmean(right, axis=1))) + 1}
    return SimpleNamespace(
        results=results, score=column, summary=SimpleNamespace(best=best)
    )


LOW = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
STEPS = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])


def test_each_moment_reads_its_rounds():
    """Twenty rounds, of which the third is the best and the last two are the last
    tenth.
    """
    rounds = np.array([LOW] * 20) + np.arange(20)[:, None] / 1000
    rounds[2] += 0.3
    made = run(rounds)
    for at, expected in (
        ("best", rounds[2]),
        ("last", rounds[19]),
        ("tail", rounds[18:].mean(axis=0)),
    ):
        np.testing.assert_allclose(of_clients(made, "pre", ACCURACY, at), expected)


def test_a_score_that_is_a_mean_over_samples_is_read_as_one():
    """The loss is recorded as a client's sum over its 20 samples; the best round is the
    accuracy's.
    """
    made = run([LOW, LOW + STEPS, LOW])
    made.results.values["clients/pre/loss"] = np.array([LOW, 2 * LOW, 3 * LOW]) * 20
    made.results.values["pre/loss"] = np.array([1.0, 2.0, 3.0])
    found = of_clients(
        made, "pre", Measure("loss", "mean", "loss", "nats", "down"), "best"
    )
    np.testing.assert_allclose(found, 2 * LOW)


def test_a_row_that_is_better_on_every_client_is_best_and_one_like_it_is_named():
    """p = 2/64 for six clients that all say the same, as in ``test_significance``."""
    line = note(
        {"low": [run([LOW])], "high": [run([LOW + STEPS], "post")]},
        "",
        ACCURACY,
        "last",
        "iid",
    )
    assert line.startswith(
        "iid: on these federations high is best, p ≤ 0.031 (at the level 0.05: "
        "Wilcoxon's signed-rank test on "
        "6 pairs"
    )
    mixed = LOW + STEPS * [1, -1, 1, -1, 1, -1]
    line = note(
        {"low": [run([LOW])], "mixed": [run([mixed])]}, "", ACCURACY, "last", "iid"
    )
    # ranks 1 + 3 + 5 = 9 against 12: 27 of the 64 choices of signs give a sum of at
    # most 9
    assert line.startswith(
        "iid: on these federations low cannot be told from mixed (p = 0.84) ("
    )


@pytest.mark.slow
def test_seeds_are_pairs_too():
    """Twelve pairs are enough for three rows; six, whose p is 2/64, are not with Holm's
    factor of 3.
    """
    rows = {
        name: [run([LOW + size * STEPS])] * 2
        for name, size in (("a", 0), ("b", 1), ("c", 2))
    }
    assert "c is best" in note(rows, "", ACCURACY, "last", "iid")
    once = {name: runs[:1] for name, runs in rows.items()}
    assert "c cannot be told from a (p = 0.094), b (p = 0.094) (" in note(
        once, "", ACCURACY, "last", "iid"
    )


def test_clients_without_a_number_in_some_row_do_not_count():
    gap = LOW.copy()
    gap[0] = np.nan
    line = note(
        {"low": [run([gap])], "high": [run([LOW + STEPS])]}, "", ACCURACY, "last", "iid"
    )
    assert "on 5 pairs" in line
    assert np.isnan(of_clients(run([gap]), "pre", ACCURACY, "last")[0])


UNSCORED = run([LOW], "post")
UNSCORED.score = "pre"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"a": [run([LOW])]}, "there is one row only"),
        (
            {"a": [run([LOW])], "b": [run([LOW], counts=COUNTS + 1)]},
            "the rows have not the same clients",
        ),
        ({"a": [run([LOW])], "b": [UNSCORED]}, "no client has a number in every row"),
    ],
)
def test_what_cannot_be_tested_says_why(rows, why):
    assert note(rows, "", ACCURACY, "last", "iid") == f"iid: not tested, {why}"
