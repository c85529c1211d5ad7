"""Metrics of clients at given times of a run, on synthetic runs of six clients."""

from dataclasses import replace

import made_up
import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.report.metric_values import (
    count_clients,
    read_clients,
    read_value,
    resolve_recorded,
)
from hpcfl.scores.metric_names import Measure
from hpcfl.storage.results import DIGEST

COUNTS = np.full((6, 2), 10)


def run(accuracies):
    return made_up.of_clients(accuracies, COUNTS)


LOW = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
STEPS = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])


def test_each_moment_reads_its_rounds():
    """Of twenty rounds the third is the best, and the last two are the last tenth."""
    rounds = np.array([LOW] * 20) + np.arange(20)[:, None] / 1000
    rounds[2] += 0.3
    made = run(rounds)
    for at, expected in (
        ("best", rounds[2]),
        ("last", rounds[19]),
        ("tail", rounds[18:].mean(axis=0)),
    ):
        np.testing.assert_allclose(read_clients(made, "mean", at), expected)


def test_a_score_that_is_a_mean_over_samples_is_read_as_one():
    """The loss is recorded as a client's sum over its 10 samples; the best round is
    selected by accuracy.
    """
    made = run([LOW, LOW + STEPS, LOW])
    losses = np.array([LOW, 2 * LOW, 3 * LOW])
    made.results.values.columns["clients/pre/loss"] = 10 * losses.ravel()
    made.results.values.of_rounds["pre/loss"] = np.array([1.0, 2.0, 3.0])
    found = read_clients(made, "loss", "best")
    np.testing.assert_allclose(found, 2 * LOW)


def test_a_score_is_read_by_its_column_and_name():
    """The primary column is ``pre``; ``post`` is twice as high."""
    made = run([LOW])
    values = made.results.values
    values.of_rounds["pre/weighted"] = np.array([0.35])
    values.of_rounds["post/weighted"] = np.array([0.7])
    for metric, expected in (
        ("accuracy", 0.35),
        ("pre/accuracy", 0.35),
        ("post/accuracy", 0.7),
    ):
        assert resolve_recorded([made], metric).measure.score == "accuracy"
        assert read_value(made, metric, "last").value == pytest.approx(expected)


def test_a_client_that_was_not_scored_has_no_number():
    gap = LOW.copy()
    gap[0] = np.nan
    found = read_clients(run([gap]), "mean", "last")
    assert np.isnan(found[0]) and np.isfinite(found[1:]).all()


def test_clients_without_a_number_of_a_score_do_not_count():
    """An AUC is NaN for two of the six clients that have an accuracy."""
    made = run([LOW])
    made.results.values.of_rounds["pre/clients"] = np.array([6.0])
    auc = np.where(LOW < 0.25, np.nan, LOW)
    made.results.values.columns["clients/pre/auc"] = auc
    for score, expected in (("auc", 4), ("accuracy", 6)):
        measure = Measure(score, "mean", score)
        assert count_clients(made, "pre", measure, [0]).tolist() == [expected]


def test_a_cost_over_the_tail_needs_all_of_its_rounds():
    """The last tenth of 20 rounds is rounds 19 and 20, and the file lacks round 19."""
    whole = made_up.run(accuracy=(0.5,) * 20)
    assert read_value(whole, "seconds/round", "tail").value == pytest.approx(1.95)
    for places, value in (([18, 19], 1.95), ([17, 19], None)):
        packed = whole.results.select_rounds(places)
        run = replace(whole, results=replace(packed, header={DIGEST: "abc"}))
        assert read_value(run, "seconds/round", "last").value == 2.0
        if value is None:
            with expect_refusal("own folder"):
                read_value(run, "seconds/round", "tail")
        else:
            assert read_value(run, "seconds/round", "tail").value == value
