"""The table of all methods is made of finished runs by one command."""

import csv
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import hpcfl
from hpcfl.experiment import config, plugins, sweep

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent.parent
FILE = {
    "rounds": 10,
    "data": {"dataset": "digits"},
    "partition": {"scheme": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch_size": 100},
    "evaluation": {"metric": "mean"},
    "sweep": {
        "runs": [{"seed": seed, "partition": {"seed": seed}} for seed in (1, 2, 3)],
        "method": {"name": ["fedavg", "local"]},
    },
}


@pytest.fixture
def launch(monkeypatch):
    """``launch(program, *arguments)`` runs a program of ``launch/benchmark`` here."""
    folder = PROJECT / "launch" / "benchmark"
    monkeypatch.syspath_prepend(str(folder))

    def run(program, *arguments):
        command = [str(argument) for argument in (folder / program, *arguments)]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(command[0], run_name="__main__")

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The runs of ``FILE``, and their folder, which nobody changes."""
    folder = tmp_path_factory.mktemp("finished") / "both"
    return hpcfl.run(FILE, out=folder), folder


def test_the_table_and_the_list_of_runs(launch, tmp_path, finished):
    runs, folder = finished
    shutil.copytree(folder, tmp_path / "runs" / "dirichlet")
    launch("write.py", tmp_path / "runs", tmp_path / "out")
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["digest"] for row in rows} == {
        run.summary.digest for run in runs.values()
    }
    (one,) = (row for row in rows if row["method"] == "fedavg" and row["seed"] == "2")
    (found,) = (
        run
        for run in runs.values()
        if run.summary.method == "fedavg" and run.config["seed"] == 2
    )
    means = found.results.values["pre/mean"]  # ten rounds, and the scoring after them
    assert float(one["accuracy"]) == pytest.approx(means[9:].mean())
    assert float(one["drift"]) == pytest.approx(means[9:].mean() - means[7:9].mean())
    assert float(one["best"]) == means.max()
    page = (tmp_path / "out" / "dirichlet.md").read_text()
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][
        2:
    ]
    assert [line[0] for line in lines] == [
        "| fedavg",
        "| local",
    ]  # with clients alike FedAvg is better
    assert lines[0][1:3] == ["pre", "1"] and lines[1][1:3] == ["post", "1"]
    accuracies = {
        method: np.array(
            [100 * float(row["accuracy"]) for row in rows if row["method"] == method]
        )
        for method in ("fedavg", "local")
    }
    ahead = accuracies["fedavg"] - accuracies["local"]
    assert lines[0][4] == f"{ahead.mean():+.2f} ± {ahead.std(ddof=1):.2f}"
    assert lines[0][5] == "1.0" and lines[1][5] == "2.0"
    assert lines[0][10] == "1.00" and lines[1][10] == "0.00"


def test_the_tables_are_those_of_the_list_of_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "launch" / "benchmark"))
    import write

    results = PROJECT / "results" / "benchmark"
    pages = write.pages(results / "runs.csv")
    assert set(pages) == set(write.SETTINGS)
    for setting, page in pages.items():
        assert (results / f"{setting}.md").read_text(encoding="utf-8") == page


def test_the_passes_of_a_round_are_those_of_the_methods_defaults(monkeypatch):
    """The table says a round's budget, which a changed default would make untrue."""
    monkeypatch.syspath_prepend(str(PROJECT / "launch" / "benchmark"))
    import write

    defaults = {
        name: plugins.find("hpcfl.methods", "method.name", name)(name=name)
        for name in write.PASSES
    }
    assert defaults["ditto"].personal_epochs == write.PASSES["ditto"][1]
    assert defaults["fedala"].share == write.PASSES["fedala"][1]
    assert defaults["fedavg-c"].tune_epochs == write.PASSES["fedavg-c"][1]
    assert 1 - defaults["fedfomo"].validation == write.PASSES["fedfomo"][0]
    assert defaults["fedprox-c"].tune_epochs == write.PASSES["fedprox-c"][1]
    assert defaults["fedrep"].head_epochs == write.PASSES["fedrep"][1]
    assert defaults["per-fedavg"].variant == "first-order"
    assert defaults["pfedme"].inner_steps == write.PASSES["pfedme"][0]


def test_the_launch_files_have_the_same_seeds():
    """Which methods they compare, each of them says itself."""
    for name in ("dirichlet", "two-classes", "hundred"):
        file = PROJECT / "launch" / "benchmark" / f"{name}.toml"
        cells = sweep.expand(config.read(file), str(file))
        assert {(cell.config.seed, cell.config.partition.seed) for cell in cells} == {
            (1, 1),
            (2, 2),
            (3, 3),
        }
        methods = {cell.config.method.name for cell in cells}
        assert len(methods) > 30 and methods <= set(plugins.names("hpcfl.methods"))


def test_the_papers_numbers_stand_beside_those_of_runs(launch, tmp_path, finished):
    """Those of DiversiFed's Table I, on Fashion-MNIST; a line that a run had stays."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text(
        "before\n<!-- table: written by launch/benchmark/beside_paper.py -->\n"
        "old\n<!-- end of table -->\nafter\n"
    )
    sweep_of = {**FILE, "sweep": {**FILE["sweep"], "method": {"name": ["fedavg"]}}}
    first, both = finished
    launch("beside_paper.py", both, out)
    hpcfl.run(sweep_of, out=runs / "one")
    launch("beside_paper.py", runs / "one", out)
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, seed) for method in ("fedavg", "local") for seed in "123"
    ]
    assert {row["digest"] for row in rows} == {
        run.summary.digest for run in first.values()
    }
    best, tail = (
        100 * np.array([float(row[key]) for row in rows if row["method"] == "local"])
        for key in ("best", "accuracy")
    )
    begin, *lines, end = (out / "README.md").read_text().splitlines()
    assert (begin, end) == ("before", "after") and "old" not in lines
    (line,) = (line for line in lines if line.startswith("| local"))
    error = (best.var() / 2 + 0.26**2 / 4) ** 0.5  # three runs, and the paper's five
    assert line.split(" | ")[1:9] == [
        "post",
        "3",
        "10",
        f"{best.mean():.2f} ± {best.std():.2f}",
        "96.10 ± 0.26",
        f"{best.mean() - 96.10:+.2f} ± {error:.2f}",
        "2, 1",  # FedAvg is better here, where clients are alike, and worse in the paper
        f"{tail.mean():.2f} ± {tail.std():.2f}",
    ]
    assert "-1.00 over all 2" in (out / "README.md").read_text()


def test_the_table_beside_the_papers_is_that_of_the_list_of_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(PROJECT / "launch" / "benchmark"))
    import beside_paper

    results = PROJECT / "results" / "diversifed"
    table = beside_paper.table(pandas.read_csv(results / "runs.csv"))
    assert table in (results / "README.md").read_text(encoding="utf-8")
