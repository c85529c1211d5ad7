"""Rows × columns over seeds: numbers computed by hand, every format as text."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import run, seeds
from refusals import expect_refusal

from hpcfl.experiment import measures
from hpcfl.report import figures, sweep_table, table_formats
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import BEST, Reading
from hpcfl.report.table_formats import Table
from hpcfl.scores.metric_names import Measure
from hpcfl.storage import results
from hpcfl.trained.run import Run


def entry(table: Table, row: int = 0, column: int = 0) -> tuple:
    """Return the mean, deviation and number of runs of an entry, and whether it is
    bold.
    """
    labels = table.texts.index[row], table.texts.columns[column]
    line = table.numbers.set_index(["row", "column"]).loc[labels]
    best = bool(table.best.iloc[row, column])
    return round(line["mean"], 6), round(line["std"], 6), line["runs"], best


def rows(table: Table) -> list[str]:
    return table.texts.index.tolist()


def columns(table: Table) -> list[str]:
    return table.texts.columns.tolist()


def make(runs, rows=(), columns=(), reading=BEST):
    return sweep_table.make(arrange(runs, rows, columns), reading)


def test_mean_and_standard_deviation_over_seeds():
    """0.5, 0.6, 0.7: mean 60 %, sample standard deviation √(0.02/2), 10 %."""
    runs = [*seeds("fedavg", 0.5, 0.6, 0.7), *seeds("local", 0.5, 0.5, 0.65)]
    grid = make(runs)
    assert (rows(grid), columns(grid)) == (["fedavg", "local"], ["digits iid"])
    assert entry(grid) == (60, 10, 3, True)
    assert entry(grid, 1) == (55, 8.660254, 3, False)
    assert "over 3 seeds" in table_formats.write_markdown(grid)


def test_mixing_scores_before_and_after_training_is_noted():
    before, after = run(), replace(run("local"), score="post")
    for one in (before, after):
        one.results.values.of_rounds["post/weighted"] = np.full(3, 0.8)
    [note] = make([before, after]).notes
    assert "pre (fedavg), post (local)" in note and "--metric post/weighted" in note
    assert make([before, after], reading=Reading("post/weighted")).notes == []


def test_several_folders_and_the_notes_of_csv(make_run, capsys):
    one, other = make_run("one", "fedavg"), make_run("other", "local", finished=False)
    sweep_table.show([one, other, one], form="csv")
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "other: left out, it is at round 3" in shown.err


def test_lost_rounds_are_noted(make_run, capsys):
    folder = make_run()
    left = results.read(folder).select_rounds([0, 2, 3])  # the best round is lost
    (folder / results.MERGED).write_bytes(results.encode(left))
    sweep_table.show([folder], form="markdown")
    assert "1 of 3 rounds are lost" in capsys.readouterr().out
    out = folder.parent / "curves.png"
    lines = figures.plot([folder], "curves", width=3.3, out=out, options={})
    assert any("1 of 3 rounds are lost" in line for line in lines)


def test_the_best_of_each_column():
    grid = make(
        [
            run("a", accuracy=(0.5,)),
            run("b", accuracy=(0.6,)),
            run("a", accuracy=(0.9,), dataset="mnist"),
            run("b", accuracy=(0.8,), dataset="mnist"),
        ]
    )
    assert grid.best.to_numpy().tolist() == [[False, True], [True, False]]


def test_a_number_without_a_known_direction_has_no_best_entry():
    runs = [run("a"), run("b")]
    for number, of_run in enumerate(runs):
        norms = np.full(3, float(number))
        of_run.results.values.of_rounds["recorded/norm"] = norms
    grid = make(runs, reading=Reading("recorded/norm"))
    assert not grid.best.to_numpy().any()


def test_less_is_better_for_seconds():
    grid = make(
        [run("a", accuracy=(0.1, 0.9)), run("b", accuracy=(0.9, 0.1))],
        (),
        (),
        Reading("seconds/round"),
    )
    assert (entry(grid)[0], entry(grid, 1)[0]) == (0.2, 0.1)
    assert grid.best.to_numpy().tolist() == [[False], [True]]


@pytest.mark.parametrize(
    ("metric", "at", "expected"),
    [
        ("", "best", 75),
        ("weighted", "best", 75),
        ("mean", "best", 65),
        ("weighted", "last", 60),
        ("pre/mean", "last", 50),
        ("seconds/round", "best", 0.2),
        ("seconds/round", "last", 0.3),
    ],
)
def test_a_metric_is_read_at_the_best_or_the_last_round(metric, at, expected):
    assert entry(make([run()], reading=Reading(metric, at)))[0] == expected


def test_the_tail_is_the_mean_of_the_last_tenth_of_the_rounds():
    """Of 21 rounds these are the last three, 19 to 21, as a tenth of 21 is 2.1; the
    best is round 5.
    """
    long = run(
        accuracy=tuple(0.9 if round == 5 else round / 100 for round in range(1, 22))
    )
    found = {
        at: entry(make([long], reading=Reading(at=at)))[0]
        for at in ("best", "last", "tail")
    }
    assert found == {
        "best": 90,
        "last": 21,
        "tail": 20,
    }
    grid = make([long], reading=Reading(at="tail"))
    assert (
        "accuracy in % as mean of the last tenth of the rounds, of 5 clients"
        in table_formats.write_latex(grid)
    )


def test_numbers_of_different_clients_in_one_table_are_warned_of():
    few = run("fedavg", clients=10)
    many = [run("local", clients=100), run("ditto", clients=100)]
    grid = make([few, *many])
    [note] = grid.notes
    assert note.startswith("digits iid: ")
    assert "10 clients (fedavg) and 100 clients (local, ditto)" in note
    assert "clients, one seed" not in table_formats.write_markdown(grid)
    grid = make([few, run("local", dataset="mnist", clients=100)])
    assert grid.notes == []  # of other data in any case
    assert (
        make([few, run("local", clients=np.nan)]).notes == []
    )  # an older version's results


def held_out(method: str, column: str, *numbers: float, **keys: object) -> Run:
    """Return a run of three rounds with held-out training samples. Their numbers select
    the best round, and the numbers of test samples in these rounds are 0.1, 0.2 and
    0.3.
    """
    one = run(method, accuracy=(0.1, 0.2, 0.3), **keys)
    on_test = {f"{column}/weighted": np.array([0.1, 0.2, 0.3])}
    one.results.values.of_rounds.update(on_test)
    one.results.values.of_rounds[f"validation/{column}/weighted"] = np.array(numbers)
    evaluation = one.config["evaluation"] | {"best_by": "validation"}
    return replace(one, score=column, config=one.config | {"evaluation": evaluation})


def test_validation_is_each_methods_own_column_on_held_out_samples():
    """FedAvg counts before training, and is best on held-out samples in round 2. Ditto
    counts after it, and is best in round 1, where its test number is lowest.
    """
    runs = [
        held_out("fedavg", "pre", 0.5, 0.8, 0.6),
        held_out("ditto", "post", 0.7, 0.4, 0.3),
    ]
    grid = make(runs, reading=Reading("validation"))
    assert entry(grid, 0)[0] == 80 and entry(grid, 1)[0] == 70
    assert "pre (fedavg), post (ditto)" in grid.notes[0]
    grid = make(runs)
    assert entry(grid, 0)[0] == 20 and entry(grid, 1)[0] == 10
    assert (
        "at each run's best round by validation samples"
        in table_formats.write_markdown(grid)
    )
    words = r"fedavg-0: --metric validation: .*training\.validation = 0"
    with expect_refusal(words):
        make([run()], reading=Reading("validation"))


def test_different_choices_of_the_best_round_are_noted():
    grid = make([run("a"), held_out("b", "pre", 0.5, 0.4, 0.3)])
    assert any("test (a), validation (b)" in note for note in grid.notes)
    assert "best round by test or validation samples" in grid.title
    last = make(
        [run("a"), held_out("b", "pre", 0.5, 0.4, 0.3)], reading=Reading(at="last")
    )
    assert not any("chosen" in note for note in last.notes)
    assert last.numbers["best_by"].tolist() == ["", ""]


def test_best_rounds_by_different_metrics_are_noted():
    runs = [run("a"), replace(run("b"), measure=Measure("accuracy", "mean", "mean"))]
    notes = make(runs, reading=Reading("pre/weighted")).notes
    assert any("weighted (a), mean (b)" in note for note in notes)
    assert make(runs, reading=Reading("pre/weighted", "last")).notes == []


def test_the_first_run_may_lack_the_score():
    """A lower calibration error is better in any order of the runs."""
    lacking, low, high = run("a"), run("b"), run("c")
    for one, error in ((low, 0.1), (high, 0.2)):
        one.results.values.of_rounds["pre/ece"] = np.full(3, error)
        one.results.header["scores"] = measures.describe(measures.list_built_in())
    grid = make([lacking, low, high], reading=Reading("ece"))
    assert grid.title.startswith("ece in %")
    assert grid.best.to_numpy().tolist() == [[False], [True], [False]]
    assert grid.notes == ["no value of ece: a-0"]


def test_different_partitions_are_noted():
    first, second = run("a", 0), run("b", 1)
    for one in (first, second):
        del one.config["partition"]["seed"]
    [note] = make([first, second]).notes
    assert "different partitions" in note


def test_values_of_a_key_are_in_order():
    """The first method has no run at 0.01."""
    rates = {"fedavg": ("0.03", "0.1", "1e-05"), "local": ("0.01", "0.03", "10.0")}
    runs = [run(method, lr=float(rate)) for method, of in rates.items() for rate in of]
    ordered = [f"lr={rate}" for rate in ("1e-05", "0.01", "0.03", "0.1", "10.0")]
    assert make(runs, ["method"], ["method.lr"]).texts.columns.tolist() == ordered
    grid = make(runs, ["method.lr"], ["method"])
    assert rows(grid) == ordered and columns(grid) == ["fedavg", "local"]


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        ("pre/weightd", "--metric pre/weightd: .*'pre/weighted'"),
        ("clients/floats_up", "--metric clients/floats_up: "),
    ],
)
def test_a_metric_that_was_not_recorded_is_refused_with_those_that_were(
    metric, complaint
):
    with expect_refusal(complaint):
        make([run()], reading=Reading(metric))


@pytest.mark.parametrize(
    ("metric", "score"),
    [("macro_f1", "macro_f1"), ("top5/worst_tenth", "top5"), ("pre/ece", "ece")],
)
def test_a_missing_score_is_refused_with_its_setting(metric, score):
    played = run()
    header = {"scores": {"accuracy": played.scores["accuracy"]}}
    played = replace(played, results=replace(played.results, header=header))
    words = rf'evaluation\.scores = \["{score}"\] '
    with expect_refusal(words):
        make([played], reading=Reading(metric))
    with expect_refusal(r"--metric elsewhere/accuracy: [^=]*$"):
        make([played], reading=Reading("elsewhere/accuracy"))


def test_different_configurations_are_separate_rows():
    grid = make(
        [
            *seeds("fedprox", 0.5, 0.6, mu=0.1),
            *seeds("fedprox", 0.7, 0.8, mu=1.0),
            *seeds("local", 0.1),
        ]
    )
    assert rows(grid) == ["fedprox mu=0.1", "fedprox mu=1.0", "local"]
    assert grid.numbers["runs"].tolist() == [2, 2, 1]
    with expect_refusal(r"method\.mu; .*--rows or --columns"):
        make(
            [*seeds("fedprox", 0.5, mu=0.1), *seeds("fedprox", 0.7, mu=1.0)],
            ["method.name"],
            ["data.dataset"],
        )


def test_any_key_as_rows_and_columns():
    grid = make(
        [*seeds("a", 0.5, 0.6), *seeds("b", 0.7, 0.8)], ["seed"], ["method.name"]
    )
    assert (rows(grid), columns(grid)) == (["seed=0", "seed=1"], ["a", "b"])
    with expect_refusal(r"'method\.nam' .*'method\.name'"):
        make([run()], ["method.nam"], [])


def test_unfinished_runs_are_left_out_and_named():
    grid = make([run(), run("local", finished=False)])
    assert rows(grid) == ["fedavg"]
    assert grid.notes == ["local-0: left out, it is at round 3 of 3"]
    with expect_refusal(r"fedavg-0: .*round 3 of 3"):
        make([run(finished=False)])


def test_a_number_that_the_best_round_lacks_is_that_of_the_latest_round_before():
    """The state after the last aggregation is often the best, and has no number after
    training.
    """
    one = run(accuracy=(0.5, 0.6, 0.9))
    one.results.values.of_rounds["post/mean"] = np.array([0.3, 0.7, np.nan])
    other = run("local", accuracy=(0.9, 0.6, 0.5))
    other.results.values.of_rounds["post/mean"] = np.array([np.nan, 0.7, 0.8])
    found = make([one, other], reading=Reading("post/mean"))
    assert entry(found)[0] == 70 and entry(found)[3]
    assert not entry(found, 1)[3]


def test_numbers_of_different_data_have_different_columns():
    small, large = run("a", accuracy=(0.5,)), run("b", accuracy=(0.6,))
    small.config["partition"]["clients"], large.config["partition"]["clients"] = 5, 20
    found = make([small, large])
    assert columns(found) == ["digits iid clients=5", "digits iid clients=20"]


@pytest.fixture
def grid():
    return make(
        [*seeds("fedavg", 0.5, 0.6), *seeds("a|b_c", 0.7), run("x", finished=False)]
    )


def test_csv_has_a_line_for_each_entry(grid):
    lines = table_formats.write_csv(grid).splitlines()
    assert lines[0] == "row,column,metric,at,mean,std,runs,clients,best_by"
    assert lines[2] == "a|b_c,digits iid,weighted,best,70.0,nan,1,5,test"
    *numbers, best_by = lines[1].split(",")[4:]
    assert [float(one) for one in numbers] == pytest.approx([55, 50**0.5, 2, 5])
    assert best_by == "test"


def test_missing_numbers_are_dashes_in_every_format():
    one, other = run("fedavg"), run("local", dataset="mnist")
    other.results.values.of_rounds["pre/weighted"] = np.full(3, np.nan)
    found = make([one, other])
    assert (
        "| fedavg | **75.00** | – |\n| local | – | – |"
        in table_formats.write_markdown(found)
    )
    assert r"fedavg & $\mathbf{75.00}$ & -- \\" in table_formats.write_latex(found)
    assert r"local & -- & -- \\" in table_formats.write_latex(found)
