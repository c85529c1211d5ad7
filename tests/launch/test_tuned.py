"""Launch files of the tuned table: settings fixed before the runs, and pages made of
the runs.
"""

import math
import os
import re
import shutil
import subprocess
import tomllib
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from places import ROOT

import hpcfl
from hpcfl.experiment import plugins
from hpcfl.report import figures, metric_values
from hpcfl.trained import loading, packed
from hpcfl.tuning import plan

TUNED = ROOT / "launch" / "tuned"
RESULTS = ROOT / "results" / "tuned"
SETTINGS = ["dirichlet", "rotated", "permuted", "text"]
LEFT_OUT = {"fedbn"}  # needs a model with batch norm


def read(name, cell):
    """Return a tuning of which only the method with this run is read."""
    return plan.read(tomllib.loads((TUNED / f"{name}.toml").read_text()), name, cell)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_but_those_left_out_is_tuned_over_twelve_partitions(
    name, monkeypatch
):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = read(name, "fedala,")
    section = tuning.section
    assert set(section.methods) == {*plugins.list_names("hpcfl.methods")} - LEFT_OUT
    assert len(section.final_seeds) >= 12
    assert {"training.lr", "method.layers"} <= tuning.find_ranges("fedala").keys()
    assert len(tuning.list_trials("fedala")) == section.trials


@pytest.mark.slow
def test_all_settings_have_the_same_search(monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    sections = [read(name, "local,").section for name in SETTINGS]
    for one in sections[1:]:
        same = {"methods", "trials", "rungs", "eta", "search_seeds", "final_seeds"}
        assert one.model_dump(include=same) == sections[0].model_dump(include=same)


def test_all_sham_methods_have_the_same_trials(monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = read("sham", "fedavg,")
    tried = {
        tuple(trial.description for trial in tuning.list_trials(method))
        for method in tuning.section.methods
    }
    assert len(tuning.section.methods) == 8 and len(tried) == 1


@pytest.mark.slow
def test_all_paths_of_the_sham_check_are_fedavg(monkeypatch, tmp_path):
    """Three rounds at a rate that all of them try are equal up to the order of sums."""
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = read("paths", "fedavg,")
    losses = {}
    for method in tuning.section.methods:
        trial = tuning.list_trials(method)[1]
        experiment = tuning.make_config(trial, 0, 3)
        run = hpcfl.run(experiment.resolved(), out=tmp_path / trial.name)
        assert run.score == tuning.find_column(method)
        losses[method] = run.results.values[f"clients/{run.score}/loss"]
    for method, of_method in losses.items():
        np.testing.assert_allclose(of_method, losses["fedavg"], 1e-4, err_msg=method)


@pytest.fixture
def writer(monkeypatch):
    """Return the module ``write.py`` with few resamples."""
    monkeypatch.syspath_prepend(str(TUNED))
    import write

    monkeypatch.setattr(write, "RESAMPLES", 99)
    return write


@pytest.fixture
def across(writer):
    """Return the module ``across.py`` above it."""
    import across

    return across


def rows_of(lines):
    """Return the cells of a page's only table, by method."""
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {method: row for method, *row in cells[1:]}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_published_page_has_the_numbers_of_its_csv_and_of_all_settings(name):
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    rows = rows_of(text.splitlines())
    own = 100 * pandas.read_csv(RESULTS / f"{name}.csv", index_col="method")["test"]
    assert rows.keys() == set(own.index)
    for method, (_, accuracy, *_) in rows.items():
        assert float(accuracy) == pytest.approx(own[method], abs=0.006)
    side_by_side = (RESULTS / "settings.md").read_text(encoding="utf-8")
    of_own_models, _ = side_by_side.split("## Start models after five epochs")
    bold = 0
    gains = rows_of(of_own_models.splitlines())
    assert gains.keys() == rows.keys() - {"local"}
    for method, of_settings in gains.items():
        gain = of_settings[SETTINGS.index(name)]
        assert gain.strip("*") == rows[method][3]
        bold += gain.startswith("**")
    found = re.search(rf"{name} (\d+) better, (\d+) worse", of_own_models)
    assert bold == sum(map(int, found.groups()))


@pytest.mark.parametrize(
    ("data", "same"),
    [
        ({"dataset": "digits"}, False),
        ({"samples": 200}, True),
        ({"samples": 200, "redraw": True}, False),
    ],
)
def test_subsets_without_redraw_give_partitions_the_same_images(writer, data, same):
    placed = SimpleNamespace(run=SimpleNamespace(config={"data": data}))
    assert writer.deals_same_images([placed]) is same


@pytest.mark.parametrize("name", SETTINGS)
def test_every_partition_of_a_setting_draws_its_own_samples(name):
    data = tomllib.loads((TUNED / f"{name}.toml").read_text())["data"]
    assert "samples" not in data or data["redraw"]


@pytest.fixture(scope="module")
def played_packs(tmp_path_factory):
    """Return final runs of three methods over two partitions, with a selected rate and
    with a rate without progress.
    """
    folder = tmp_path_factory.mktemp("packs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda folder: [])
        play_packs(folder)
    return folder


def play_packs(folder):
    for name, lr in (("made", 0.5), ("made-untuned", 0.0005)):
        runs = [
            hpcfl.run(
                {
                    "rounds": 3,
                    "seed": seed,
                    "partition": {"clients": 3, "seed": seed + 1},
                    "model": {"hidden": [4]},
                    "training": {"lr": lr, "batch_size": 50},
                    "method": {"name": method},
                    "evaluation": {"tune_epochs": [5], "metric": "mean"},
                },
                out=folder / f"{method},{name},seed={seed}",
                progress=False,
            )
            for method in ("fedavg", "local", "fedrep")
            for seed in (0, 1)
        ]
        packed.write(runs, folder / f"{name}.tar.xz")


@pytest.fixture
def packs(played_packs, tmp_path):
    for pack in played_packs.glob("*.tar.xz"):
        shutil.copy(pack, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_settings_page_agrees_with_its_runs(writer, packs):
    writer.main("made", packs)
    lines = (packs / "made.md").read_text(encoding="utf-8").splitlines()
    rows = rows_of(lines)
    assert rows.keys() == {"fedavg", "local", "fedrep"}
    assert rows["local"][3] == rows["fedavg"][6] == "+0.00 ± 0.00"
    runs = loading.list_runs(packs / "made.tar.xz")
    means = means_of(runs, "mean")
    for method, (column, own, _, beside_local, hurt, *_) in rows.items():
        of_method = [one for one in runs if one.config["method"]["name"] == method]
        assert column == of_method[0].score
        assert float(own) == pytest.approx(means[method], abs=0.006)
        gain = float(own) - float(rows["local"][1])
        assert hurt.startswith(f"{100 * share_hurt(runs, method):.0f} ± ")
        assert float(beside_local.split(" ")[0]) == pytest.approx(gain, abs=0.011)
    assert lines[-3].startswith("* After Holm's correction tuning ")


@pytest.mark.slow
def test_the_settings_are_compared_with_tuned_and_untuned_local(writer, across, packs):
    writer.main("made", packs)
    across.main(packs, ["made"])
    page = rows_of((packs / "made.md").read_text(encoding="utf-8").splitlines())
    text = (packs / "settings.md").read_text(encoding="utf-8")
    own, _, untuned = [rows_of(part.splitlines()) for part in text.split("\n## ")[1:]]
    for method in ("fedavg", "fedrep"):
        assert own[method][0].strip("*") == page[method][3]
        assert untuned[method][0].strip("*") == page[method][-1]
    assert text.count("Methods with gains above 0 in all settings: ") == 3


def share_hurt(runs, method):
    """Return the share of clients with less accuracy than under Local, the mean over
    both partitions.
    """
    shares = []
    for seed in (0, 1):
        of_clients = {
            one.config["method"]["name"]: metric_values.read_clients(
                one, one.metric, "tail"
            )
            for one in runs
            if one.config["seed"] == seed
        }
        shares.append((of_clients[method] < of_clients["local"]).mean())
    return fmean(shares)


def test_a_correlation_ignores_values_missing_on_one_side(writer):
    first = pandas.DataFrame({0: [1.0, 2, 3, 9], 1: [1.0, 2, 3, 9]}, list("abcd"))
    second = pandas.DataFrame({0: [30.0, 2, 1], 1: [math.nan, 2, 1]}, list("abc"))
    assert writer.correlate(first, second) == "-1.00 (-1.00 to -1.00)"


@pytest.mark.slow
def test_a_settings_page_reports_the_effect_of_doubled_rounds(
    writer, packs, monkeypatch
):
    """The untuned runs, whose rate makes no progress, replace the longer ones, and
    every method counts as better than Local.
    """

    def all_better(compared):
        return pandas.Series("better", compared.index)

    runs = loading.list_runs(packs / "made-untuned.tar.xz")
    first = [run for run in runs if run.config["seed"] == 0]
    packed.write(first, packs / "made-twice.tar.xz")
    monkeypatch.setattr(writer, "find_verdicts", all_better)
    writer.main("made", packs)
    *_, changed, best, ahead = (packs / "made.md").read_text("utf-8").splitlines()
    assert changed.startswith(
        "* With twice the rounds 0 of 3 methods are more accurate"
    )
    runs = loading.list_runs(packs / "made.tar.xz")
    of_first_seed = [run for run in runs if run.config["seed"] == 0]
    before = means_of(of_first_seed, "mean")
    after = means_of(first, "mean")
    for method in ("fedavg", "local"):
        assert f"{method} {after[method] - before[method]:+.1f}" in changed
    ranked = sorted(after, key=after.get, reverse=True)
    order = ", ".join(f"{method} {after[method]:.1f}" for method in ranked)
    assert best.endswith(f" are {order}.")
    gains = [before["fedavg"] - before["local"], after["fedavg"] - after["local"]]
    assert f"fedavg {gains[0]:+.1f} and {gains[1]:+.1f}" in ahead


@pytest.mark.slow
def test_the_comparison_of_settings_agrees_with_their_runs(across, packs):
    across.main(packs, ["made", "made-untuned"])
    text = (packs / "settings.md").read_text(encoding="utf-8")
    own, after = text.split("## Start models after five epochs")
    for part, metric in ((own, "mean"), (after, "tuned_5/mean")):
        cells = [line.strip("| ").split(" | ") for line in part.splitlines()]
        rows = {line[0]: line[1:] for line in cells if len(line) == 4}
        assert rows.pop("method") == ["made", "made-untuned", "mean rank"]
        assert rows.keys() == {"fedavg", "fedrep"}
        for column, setting in enumerate(["made", "made-untuned"]):
            runs = loading.list_runs(packs / f"{setting}.tar.xz")
            means = means_of(runs, metric)
            for method, values in rows.items():
                gain = float(values[column].strip("*").split(" ")[0])
                beside = means[method] - means["local"]
                assert gain == pytest.approx(beside, abs=0.006)
        assert "of 2 methods: made " in part
        assert "between settings: made and made-untuned " in part


def means_of(runs, metric):
    """Return the mean score at the tail of each method's runs, in %."""
    of_method = {}
    for one in runs:
        value = metric_values.read_value(one, metric, "tail").value
        of_method.setdefault(one.config["method"]["name"], []).append(value)
    return {method: 100 * fmean(values) for method, values in of_method.items()}


def test_the_rounds_of_a_chosen_file_are_doubled(tmp_path):
    """A selected file has a comment with the key's meaning after the number."""
    chosen = tmp_path / "tuned" / "chosen"
    chosen.mkdir(parents=True)
    (chosen / "fedavg.toml").write_text("rounds = 40    # federated rounds (integer)\n")
    (tmp_path / "hpcfl").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "hpcfl").chmod(0o755)
    done = subprocess.run(
        ["bash", TUNED / "twice.sh", tmp_path / "tuned"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--set rounds=80 --out" in done.stdout
