"""Comparison of rows with a reference, on synthetic runs."""

import csv
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.report import comparison, sweep_table, table_formats, variance
from hpcfl.report.arrangement import Arrangement, Placed, arrange
from hpcfl.report.comparison import Reference, compute_gains, compute_gini
from hpcfl.report.metric_values import Reading
from hpcfl.trained import loading

LAST = Reading("mean", "last")
COUNTS = np.full((4, 2), 5)


def placed(accuracies, seed=0, partition=None, counts=COUNTS, search=None):
    """Return a run of one round with four clients of ten test samples each."""
    run = made_up.of_clients([accuracies], counts)
    setting = {"seed": seed, "partition.seed": partition}
    return Placed(run, setting if search is None else setting | {"tune.search": search})


def same(accuracy, *given, **keys):
    """Return a run in which all clients have the same accuracy."""
    return placed([accuracy] * 4, *given, **keys)


def gains_of(row, reference):
    return compute_gains(row, reference, LAST)


def test_gains_by_hand():
    """Gains are −0.2, 0.1, 0.3, 0.2 and, in the other partition, 0.1, 0.1, 0.1, −0.1.

    Means are 0.1 and 0.05, so 0.075. One client of four loses accuracy in both, 0.15 on
    average. The worst tenth is one client, −0.2 and −0.1.
    """
    row = [placed([0.3, 0.6, 0.9, 0.7], 0), placed([0.5, 0.5, 0.5, 0.3], 1)]
    reference = [placed([0.5, 0.5, 0.6, 0.5], 0), placed([0.4, 0.4, 0.4, 0.4], 1)]
    gains = gains_of(row, reference)
    assert gains.interval.mean == pytest.approx(0.075)
    assert gains.hurt == pytest.approx(0.25)
    assert gains.loss == pytest.approx(-0.15)
    assert gains.worst_tenth == pytest.approx(-0.15)
    assert gains.interval.partitions == 2


def test_rounding_is_no_loss():
    """Gains of several searches that cancel have a mean of about −1e-18."""
    gains = gains_of([same(0.5, 0)], [same(0.4, 0)])
    rounded = replace(gains, of_clients=[np.array([-1e-18, 0, -0.2, 0.1])])
    assert rounded.hurt == 0.25 and rounded.loss == -0.2


def test_the_interval_of_several_searches_includes_the_search():
    """Three searches on four partitions; the search explains most of the variance of
    the gains.
    """
    random = np.random.default_rng(0)
    row, reference, means = [], [], []
    for search, of_search in enumerate((0.0, 0.2, -0.2)):
        for partition in range(4):
            gained = of_search + 0.05 * random.standard_normal(4)
            means.append(gained.mean())
            given = 10 * search + partition, partition, COUNTS, search
            row.append(placed((0.5 + gained).tolist(), *given))
            reference.append(same(0.5, *given))
    gains = gains_of(row, reference)
    alone = gains_of(row[:4], reference)
    found = variance.estimate(np.reshape(means, (3, 4)))
    assert gains.interval.mean == pytest.approx(np.mean(means))
    assert gains.interval.half == pytest.approx(found.compute_half_width())
    assert gains.interval.half > 3 * alone.interval.half
    assert (gains.searches, alone.searches) == (3, 1)
    assert 0.5 < gains.bootstrap / gains.interval.half < 1.5


def test_seeds_of_one_partition_are_one_partition():
    """Two training seeds of partition 7 are averaged for each client."""
    row = [same(0.6, 0, 7), same(0.8, 1, 7)]
    reference = [same(0.5, 0, 7), same(0.5, 1, 7)]
    gains = gains_of(row, reference)
    assert gains.interval.partitions == 1
    assert gains.interval.mean == pytest.approx(0.2)


def test_a_partition_from_a_file_counts_once_for_all_seeds():
    row = [from_file([0.6] * 4, seed) for seed in (0, 1)]
    reference = [from_file([0.5] * 4, seed) for seed in (0, 1)]
    assert gains_of(row, reference).interval.partitions == 1
    other = np.full((4, 2), 6)
    row[1] = from_file([0.6] * 4, 1, counts=other)
    reference[1] = from_file([0.5] * 4, 1, counts=other)
    assert gains_of(row, reference).interval.partitions == 2


def from_file(accuracies, seed, counts=COUNTS):
    one = placed(accuracies, seed, seed + 1, counts)
    return one._replace(setting=one.setting | {"partition.file": "p.h5"})


def test_repetitions_that_only_one_has_are_left_out():
    gains = gains_of([same(0.6, 0), same(0.9, 5)], [same(0.5, 0)])
    assert gains.interval.mean == pytest.approx(0.1)
    assert gains_of([same(0.6, 3)], [same(0.5)]) is None


def test_a_run_without_the_score_is_named():
    lost = same(0.6, 1)
    values = made_up.sparse({"pre/mean": np.full(1, np.nan)})
    lost.run.results = replace(lost.run.results, values=values)
    lost.run.label = "lost"
    gains = gains_of([same(0.7, 0), lost], [same(0.5, 0), same(0.5, 1)])
    assert gains.missing == ["lost"]
    assert gains.interval.mean == pytest.approx(0.2)


def test_a_table_names_the_number_of_clients_that_it_compares():
    """Each run has scored two of four clients, and only one of them in both runs."""
    row = placed([0.5, 0.6, np.nan, np.nan])._replace(row="fedavg")
    reference = placed([np.nan, 0.4, 0.3, np.nan])._replace(row="local")
    for one in (row, reference):
        one.setting["partition.clients"] = 4
        one.run.folder = Path("run")
    arranged = Arrangement([row, reference], ["method.name"], [], [])
    table = comparison.make_table(arranged, "", Reference("local"), LAST)
    assert table.numbers["gain"].tolist() == pytest.approx([20])
    assert any("fedavg 1 of 4" in note for note in table.notes)


def test_pairs_of_client_and_seed_have_a_separate_test():
    """Two seeds of one partition are eight pairs, and one partition without an
    interval. Eight equal signs have p = 2/2⁸.
    """
    steps = np.linspace(0.1, 0.4, 4)
    row = [placed(0.5 + steps, 0, 7), placed(0.55 + steps, 1, 7)]
    reference = [same(0.5, seed, 7) for seed in (0, 1)]
    gains = gains_of(row, reference)
    assert len(gains.of_pairs) == 8 and gains.interval.partitions == 1
    reference = Reference("local", tests_pairs=True)
    table = comparison.tabulate({"row": gains}, reference, 100)
    assert table.loc["row", "p_pairs"] == pytest.approx(2 / 2**8)
    assert np.isnan(table.loc["row", "p"]) and table.loc["row", "verdict"] == ""


@pytest.mark.slow
def test_the_test_over_pairs_appears_when_asked_for(runs):
    reference = Reference("local", tests_pairs=True)
    (asked,) = sweep_table.compare(arrange(runs), Reading(at="tail"), reference)
    assert asked.texts.columns[-1] == comparison.PAIRS and "p_pairs" in asked.numbers
    assert comparison.PAIRS in table_formats.write_latex(asked)


def test_lower_losses_are_gains():
    row = same(0.4)
    row.run.scores["accuracy"]["better"] = "down"
    gains = gains_of([row], [same(0.5)])
    assert gains.interval.mean == pytest.approx(0.1)


def test_other_clients_are_refused():
    with expect_refusal(r"^run: .* run$"):
        gains_of([same(0.4)], [same(0.5, counts=COUNTS + 1)])


def test_gini_by_hand():
    """Values 1 and 3: the mean difference is 2·2/4 = 1, and half of it divided by the
    mean 2 is ¼.
    """
    assert compute_gini(np.array([3.0, 1.0])) == pytest.approx(0.25)
    assert compute_gini(np.array([2.0, 2.0, 2.0])) == 0
    assert np.isnan(compute_gini(np.zeros(3)))


@pytest.fixture
def runs(tmp_path):
    """Return runs of three methods on four partitions; ``fedprox`` has fedavg's
    numbers.
    """
    for seed in range(4):
        for method in ("fedavg", "local"):
            made_up.folder(tmp_path / f"{method}-{seed}", method, seed)
    return loading.load_runs_below([tmp_path])[0]


@pytest.mark.slow
def test_a_comparison_with_a_reference_in_every_format(runs):
    reference = Reference("local", power=1.0)
    (sheet,) = sweep_table.compare(arrange(runs), Reading(at="tail"), reference)
    assert list(sheet.texts.index) == ["fedavg"]
    assert "against local" in sheet.title and "last tenth" in sheet.title
    assert "(4)" in sheet.notes[0]
    line = sheet.numbers.iloc[0]
    assert line["verdict"] in ("better", "worse", "same", "open")
    for form in table_formats.TEXTS.values():
        assert "fedavg" in form(sheet)
    heading, *_ = table_formats.write_csv(sheet).splitlines()
    assert (
        heading == "row,column,gain,half,p,verdict,hurt,hurt_by,worst_tenth,gini,needs"
    )


def test_the_csv_has_the_numbers_that_the_terminal_shows():
    """Three searches on four partitions. One client of four loses 10 points or more."""
    random = np.random.default_rng(0)
    found = []
    for search in (0, 1, 2):
        for seed in range(4):
            given = seed, seed, COUNTS, search
            found.append(same(0.5, *given)._replace(row="fedavg"))
            gained = 0.05 * search + 0.05 * random.random(4)
            gained[0] = -0.1 - 0.02 * seed
            found.append(placed((0.5 + gained).tolist(), *given)._replace(row="ditto"))
    for one in found:
        one.run.folder = Path("run")
    arranged = Arrangement(found, ["method.name"], [], [])
    table = comparison.make_table(arranged, "", Reference("fedavg"), LAST)
    [line] = csv.DictReader(table_formats.write_csv(table).splitlines())
    assert 0.5 < float(line[comparison.BOOTSTRAP]) / float(line["half"]) < 1.5
    assert line["hurt"] == "25.0"
    shown = table.texts.loc["ditto"]
    gain, _, half = shown[comparison.GAIN].split(" ")
    assert float(line["gain"]) == pytest.approx(float(gain), abs=0.005)
    assert float(line["half"]) == pytest.approx(float(half), abs=0.005)
    for name, heading in (
        ("hurt", "hurt %"),
        ("hurt_by", "hurt by"),
        ("worst_tenth", "worst tenth"),
        (comparison.BOOTSTRAP, comparison.BOOTSTRAP),
    ):
        assert float(line[name]) == pytest.approx(float(shown[heading]), abs=0.06)


@pytest.mark.slow
def test_the_csv_of_several_columns_has_one_header(runs, tmp_path, monkeypatch, capsys):
    """Only the second comparison has the number of searches."""
    [first] = sweep_table.compare(arrange(runs), LAST, Reference("local"))
    numbers = first.numbers.assign(column="tuned", searches=3)
    second = replace(first, numbers=numbers, notes=["second"])
    for tables in ([first, second], [second, first]):
        monkeypatch.setattr(sweep_table, "compare", lambda *given, found=tables: found)
        sweep_table.show([tmp_path], form="csv", against=Reference("local"))
        shown = capsys.readouterr()
        lines = list(csv.DictReader(shown.out.splitlines()))
        found = {line["column"]: line["searches"] for line in lines}
        assert found == {"digits dirichlet": "nan", "tuned": "3.0"}
        assert "note: second" in shown.err


@pytest.mark.slow
def test_a_comparison_names_the_runs_left_out(runs, tmp_path, capsys):
    made_up.folder(tmp_path / "late", "ditto", 9, finished=False)
    sweep_table.show([tmp_path], against=Reference("local"))
    assert "late: left out" in capsys.readouterr().err


def test_a_comparison_notes_other_code_and_rounds(made_runs):
    made_runs(local=[0.0, 0.1])
    runs = made_runs(keys={"rounds": 5}, fedavg=[0.2, 0.3])
    for one in runs:
        one.results.header["commit"] = one.config["method"]["name"]
    [table] = sweep_table.compare(arrange(runs), Reading(at="last"), Reference("local"))
    for key, contents in {"commit": ("fedavg", "local"), "rounds": ("2", "5")}.items():
        [note] = [note for note in table.notes if f" {key}: " in note]
        assert all(f"{content} (" in note for content in contents)


def test_the_title_names_a_column_that_the_user_gave(made_runs):
    runs = made_runs(local=[0.0, 0.1], fedavg=[0.2, 0.3])
    for metric in ("pre/mean", "pre/accuracy", ""):
        [table] = sweep_table.compare(
            arrange(runs), Reading(metric), Reference("local")
        )
        assert ("(pre/" in table.title) == bool(metric)
        assert metric in table.title


@pytest.mark.parametrize(
    "option",
    [("--test", "client-seed-pairs"), ("--power", "1"), ("--margin", "0.5")],
)
def test_options_of_a_comparison_need_a_reference(hpcfl, option):
    code, _, error = hpcfl("table", "runs", *option)
    assert code == 2 and option[0] in error


@pytest.mark.slow
def test_a_comparison_without_its_rows_or_clients_is_refused(runs):
    with expect_refusal(r"--against lokal: .*'local'"):
        sweep_table.compare(arrange(runs), Reading(), Reference("lokal"))
    with expect_refusal("--against local: .*'cifar-10 iid'"):
        elsewhere = made_up.run("fedavg", dataset="cifar-10")
        sweep_table.compare(arrange([*runs, elsewhere]), Reading(), Reference("local"))
    with expect_refusal("--metric seconds/round: "):
        sweep_table.compare(arrange(runs), Reading("seconds/round"), Reference("local"))
