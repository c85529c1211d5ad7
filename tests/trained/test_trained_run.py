"""Summary of a run, computed by hand from the records of ``make_run``."""

import made_up
import numpy as np
import pytest

from hpcfl.trained import loading
from hpcfl.trained import run as trained_run


def test_best_is_the_highest_of_the_column_that_counts_and_the_rest_is_read_from_its_round(
    make_run,
):
    outcome = loading.load_run(make_run()).summary
    assert (outcome.method, outcome.dataset, outcome.rounds, outcome.finished) == (
        "fedavg",
        "digits",
        3,
        True,
    )
    assert outcome.best == {
        "round": 2,
        "pre": 0.75,
        "post": 0.625,
    }
    assert outcome.last == {
        "round": 4,
        "pre": 0.625,
        "post": None,
    }
    assert outcome.tail == {
        "rounds": [4, 4],
        "pre": 0.625,
        "post": None,
    }
    assert outcome.scores["clients"] == 2


def test_a_method_scored_after_training_counts_that_column(make_run):
    outcome = loading.load_run(make_run(method="local", primary="post")).summary
    assert (
        outcome.best
        == outcome.last
        == {
            "round": 3,
            "pre": 0.5,
            "post": 0.875,
        }
    )


def test_the_configuration_may_choose_column_and_metric(make_run):
    outcome = loading.load_run(make_run(score="post", metric="worst_tenth")).summary
    assert outcome.best == {
        "round": 3,
        "pre": pytest.approx(0.3),
        "post": pytest.approx(0.675),
    }


def test_costs_leave_out_first_round_and_final_scoring(make_run):
    outcome = loading.load_run(make_run()).summary
    assert (outcome.seconds_per_round, outcome.floats_up, outcome.floats_down) == (
        1.5,
        10.0,
        30.0,
    )


def test_an_interrupted_run_has_a_summary_of_its_rounds(make_run):
    outcome = loading.load_run(make_run(rounds=9, finished=False)).summary
    assert (outcome.rounds, outcome.finished, outcome.digest) == (3, False, None)
    assert outcome.last == {
        "round": 3,
        "pre": 0.5,
        "post": 0.875,
    }


def test_a_last_round_in_which_no_client_has_a_number_is_noted():
    run = made_up.run(accuracy=(0.5, 0.75, np.nan))
    assert run.summary.notes == []
    clients = {"pre/clients": np.array([5.0, 5.0, 0.0])}
    [note] = made_up.changed(run, {**run.results.values, **clients}).summary.notes
    assert "'pre' after round 2" in note
    nothing = made_up.run(accuracy=(np.nan, np.nan))
    values = {**nothing.results.values, "pre/clients": np.zeros(2)}
    [note] = made_up.changed(nothing, values).summary.notes
    assert "'pre' in any round" in note
    damaged = {**nothing.results.values, "pre/clients": np.full(2, np.inf)}
    assert made_up.changed(nothing, damaged).summary.notes == []


def test_scores_of_different_cohorts_are_noted():
    run = made_up.run(clients=5)
    run.config["evaluation"]["clients"] = "cohort"
    run.config["partition"]["clients"] = 20
    [note] = run.summary.notes
    assert "--at tail" in note
    run.config["partition"]["clients"] = 5
    assert trained_run.summarise(run).notes == []
