"""Timed rounds equal a run's rounds, and the report describes them."""

import json
import sys

import pytest
import round_times
import tiny

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config


@pytest.mark.parametrize(
    ("every", "rounds", "numbers"),
    [(1, 2, [1, 2, 3]), (5, 2, [1, 2, 3, 5]), (90, 1, [1, 2])],
)
def test_scoring_is_timed_where_the_run_scores(every, rounds, numbers):
    experiment = config.parse(
        tiny.table("fedavg", rounds=50, evaluation={"every": every})
    )
    assert round_times.round_numbers(experiment, rounds) == numbers


def test_the_report_counts_samples_and_lanes_and_projects_the_run():
    counts = [
        [8, 0, 0, 0],
        [4, 0, 0, 0],
    ]  # batches of 4: two steps and one, in one batch
    experiment = config.parse(
        tiny.table("fedavg", counts, rounds=1000, training={"batch_size": 4})
    )
    report = round_times.measure(experiment, 3, OneProcess())
    seconds = report["rounds"]
    assert len(seconds) == 3 and report["warm_up"] > 0 and report["scoring_measured"]
    assert report["samples_per_second"] == pytest.approx(3 * 12 / sum(seconds))
    assert report["memory_mb"][0] > 10
    projected = 1000 * report["seconds_per_round"]
    assert report["projected_seconds"] == pytest.approx(projected, rel=1)
    assert (report["lane_occupancy"], report["lanes_per_step"]) == (1, 3 / 2)
    assert "100 % did work, 1.5 lanes a step" in round_times.text(report)


def test_a_file_is_timed_and_a_mistake_is_refused(tmp_path, monkeypatch, capsys):
    file = tmp_path / "one.toml"
    file.write_text(
        "rounds = 9\n[data]\ndataset = 'digits'\n[method]\nname = 'fedavg'\n"
        "[partition]\nscheme = 'iid'\nclients = 4\n"
    )

    def code(*words):
        monkeypatch.setattr(sys, "argv", ["round_times.py", str(file), *words])
        try:
            round_times.main()
        except SystemExit as left:
            return left.code
        return 0

    assert code("--rounds", "1", "--json", "--set", "training.epochs=1") == 0
    assert len(json.loads(capsys.readouterr().out)["rounds"]) == 1
    assert code("--set", "training.epoch=1") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "training.epoch" in error
