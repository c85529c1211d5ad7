"""Runs by virtual time: tables at equal time, and time to an accuracy."""

from pathlib import Path

import made_up
from made_up import timed
from refusals import expect_refusal

from hpcfl.report import sweep_table
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import Reading, find_time_to, read_value


def texts(runs, **reading):
    grid = sweep_table.make(arrange(runs), Reading(**reading))
    return grid.texts.iloc[:, 0].tolist(), grid


def test_a_table_at_equal_time_reads_the_last_round_that_was_there():
    """The primary models are scored before training, so they exist at the start of a
    round: after 25 s of rounds of 10 s the third, after 25 s of rounds of 5 s all four.
    """
    runs = [
        timed("fedavg", 0, 0.1, 0.2, 0.3, 0.4),
        timed("ditto", 0, 0.1, 0.5, 0.6, 0.55, step=5.0),
    ]
    cells, grid = texts(runs, at=25.0)
    assert cells == ["30.00", "55.00"]
    assert "accuracy in % by 25 s " in grid.title
    assert grid.notes[-1] == "ended before 25 s: ditto"
    assert texts(runs, at=20.0)[0] == ["30.00", "55.00"]
    assert texts(runs, at=19.0)[0] == ["20.00", "55.00"]
    # a round that ends when the next begins: its trained models exist later
    post = [run.results.values for run in runs]
    for values in post:
        values.of_rounds["post/weighted"] = values["pre/weighted"]
        values.of_rounds["attackers/post/weighted"] = values["pre/weighted"]
    assert read_value(runs[0], "post/weighted", 25.0).value == 0.2
    assert read_value(runs[0], "attackers/post/weighted", 25.0).value == 0.2


def test_the_time_until_an_accuracy_is_reached():
    runs = [
        timed("fedavg", 0, 0.1, 0.5, 0.4, 0.6),
        timed("fedavg", 1, 0.1, 0.2, 0.5, 0.6),
        timed("ditto", 0, 0.1, 0.6, 0.3, 0.2),
        timed("ditto", 1, 0.1, 0.4, 0.3, 0.2),
        timed("local", 0, 0.1, 0.1, 0.1, 0.1),
        timed("local", 1, 0.1, 0.1, 0.1, 0.1),
    ]
    cells, grid = texts(runs, target=50.0)
    assert cells == ["15.0 ± 7.1", "not reached (1 of 2)", "not reached"]
    assert grid.best.iloc[:, 0].tolist() == [True, False, False]
    assert grid.title.startswith("accuracy reaches 50 % ")
    assert find_time_to(runs[0], "pre/weighted", 50.0) == 10.0


def test_a_target_in_percent_is_reached_by_an_equal_score():
    """724 of 1000; 72.4 / 100 in floating point is above 0.724."""
    assert find_time_to(timed("fedavg", 0, 0.1, 0.724), "pre/weighted", 72.4) == 10.0


def test_runs_without_virtual_time_are_refused():
    run = made_up.run("fedavg", 0, (0.1, 0.2))
    for reading in ({"at": 25.0}, {"target": 50.0}):
        with expect_refusal(r"fedavg-0: .*time\.mode = 'synchronous'"):
            texts([run], **reading)
    packed = timed("fedavg", 0, 0.1, 0.2)
    packed.results.header["digest"] = "00"
    with expect_refusal(r"fedavg-0: .*packed"):
        texts([packed], at=25.0)
    with expect_refusal(r"--time-to: .*--at, --at-virtual and --against"):
        sweep_table.show([Path("runs")], reading=Reading(target=50.0, at="last"))
    with expect_refusal("--time-to: seconds/round "):
        find_time_to(timed("fedavg", 0, 0.1), "seconds/round", 50.0)
