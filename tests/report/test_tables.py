from dataclasses import replace

import made_up
import pytest

from hpcfl.report import tables
from hpcfl.scores.metric_names import Measure


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_a_line_before_and_a_line_after_training(make_run, printed):
    tables.show(make_run("fedavg"))
    lines = printed().splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert "fedavg ▸before 75.00 74.00 (5.00) 55.00 2 2 30 ↓ 1.500" in words
    assert "after 62.50 61.50 (5.00) 42.50 2 2 10 ↑" in words
    assert max(map(len, lines)) <= 80


def test_the_legend_has_three_lines_and_explain_adds_more(make_run, printed):
    folder = make_run("fedavg")
    tables.show(folder)
    output = printed()
    legend = output[output.index("accuracy in %") : output.index("state:")].splitlines()
    assert len(legend) <= 3 and max(map(len, legend)) <= 80
    assert "on test samples" in " ".join(legend)
    tables.show(folder, explain=True)
    assert "floats: per client and round" in printed()


def test_the_legend_has_the_unit_of_each_score(make_run):
    [run] = tables.list_runs(make_run())
    other = replace(run, measure=Measure("loss", "mean", "loss", unit="nats"))
    legend = " ".join(tables.write_legend([run, other]).split())
    assert legend.startswith("accuracy in % / loss in nats ")


@pytest.mark.parametrize(
    ("score", "column", "line"),
    [("pre", "validation/pre", "validation"), ("global", "global", "▸global")],
)
def test_a_further_column_has_a_line(make_run, printed, score, column, line):
    folder = make_run(score=score)
    [run] = tables.list_runs(folder)
    recorded = run.results.values
    halved = recorded["pre/weighted"] / 2
    known = made_up.changed(run, {**recorded, f"{column}/weighted": halved})
    tables.show(folder, [known])
    lines = [text.split()[:2] for text in printed().splitlines()]
    assert [line, "37.50"] in lines


def test_table_shows_best_last_and_tail(make_run, capsys):
    tables.show(make_run("fedavg"))
    printed = " ".join(capsys.readouterr().out.split())
    for moment in ("last", "tail"):  # one of the four rounds is more than a tenth
        assert f" {moment} 62.50 61.50 (5.00) 42.50 end 2 " in printed


def test_a_long_name_of_a_score_leaves_room_for_the_names_of_runs(
    make_run, printed, monkeypatch
):
    monkeypatch.setattr(tables, "_list_scores", lambda runs: "balanced_accuracy")
    tables.show(make_run("fedavg"))
    assert "fedavg ▸before" in " ".join(printed().split())


def test_numbers_of_different_clients_are_warned_of(make_run, tmp_path, printed):
    make_run("a-fedavg")
    tables.show(make_run("b-fedavg", clients=1.0))
    assert "cannot be compared" not in printed()
    tables.show(tmp_path)
    note = "2 clients (a-fedavg) and 1 clients (b-fedavg)"
    assert note in " ".join(printed().split())


def test_the_line_after_training_falls_back_to_the_round_before_when_start_models_are_best(
    make_run, capsys
):
    folder = make_run(rounds=3, score="pre")
    tables.show(folder)
    run = tables.list_runs(folder)[0]
    run.summary.best.update(round=4, pre=0.9, post=None)
    assert tables.list_numbers(run, "pre", "best")[3] == "end"
    assert tables.list_numbers(run, "post", "best")[3] == "3"


def test_an_unfinished_run_shows_its_progress(make_run, printed):
    tables.show(make_run(rounds=9, finished=False))
    assert "3 of 9" in " ".join(printed().split())


def test_a_run_without_results_has_dashes(make_run, printed):
    folder = make_run()
    (folder / "metrics.h5").unlink()
    tables.show(folder)
    assert printed().count("–") >= 8


def test_a_sweep_is_ordered_by_accuracy(make_run, tmp_path, printed):
    for name, scale in (("a", 0.5), ("b", 1.0), ("c", 0.75)):
        make_run(f"{name}-fedavg", scale=scale)
    tables.show(tmp_path)
    lines = [
        line.split()[0]
        for line in printed().splitlines()
        if "▸" in line and "-fedavg" in line
    ]
    assert lines == ["b-fedavg", "c-fedavg", "a-fedavg"]
