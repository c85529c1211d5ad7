"""Times and scores in the progress line."""

import math

import tiny
from playing import run_table

from hpcfl.report import progress
from hpcfl.report.progress import compute_pace, describe_number
from hpcfl.scores.metric_names import Measure


def test_first_round_of_a_start_has_no_weight_in_the_pace():
    assert compute_pace([9.0]) == 9 and compute_pace([9.0, 1.0, 3.0]) == 2


def test_a_number_of_no_client_is_described():
    measure = Measure("accuracy", "weighted", "weighted", unit="%")
    assert "no client" in describe_number(measure, math.nan)


def test_a_summary_over_clients_is_named():
    measure = Measure("accuracy", "worst_tenth", "worst_tenth", unit="%")
    assert "worst tenth" in describe_number(measure, 0.5)


def test_final_scoring_has_a_line_after_the_last_round(tmp_path, printed):
    run_table(tiny.table("fedavg", rounds=4), tmp_path / "run")
    text = printed()
    assert text.index("round 4/4  accuracy") < text.index("after 4 rounds  accuracy")


def test_score_of_an_earlier_round_is_named(tmp_path, printed, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL", 0.0)
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    table = tiny.table("fedavg", rounds=4, evaluation={"every": 2})
    run_table(table, tmp_path / "run")
    [line] = [line for line in printed().splitlines() if "round 3/4" in line]
    assert " in round 2 " in line
