"""The table of all methods is made of finished runs by one command."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
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


def test_the_table_and_the_list_of_runs(tmp_path):
    runs = hpcfl.run(FILE, out=tmp_path / "runs" / "dirichlet")
    subprocess.run(
        [
            sys.executable,
            PROJECT / "launch" / "benchmark" / "write.py",
            tmp_path / "runs",
            tmp_path / "out",
        ],
        check=True,
    )
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
    assert lines[0][3:6] == ["1.0", "1", "0"] and lines[1][3:6] == ["2.0", "0", "1"]
    assert (
        lines[0][10] == "1.00" and lines[1][10] == "0.00" and "fedavg is best" in page
    )


def test_the_launch_files_have_all_methods_and_the_same_seeds():
    for name in ("dirichlet", "two-classes", "hundred"):
        file = PROJECT / "launch" / "benchmark" / f"{name}.toml"
        cells = sweep.expand(config.read(file), str(file))
        assert {(cell.config.seed, cell.config.partition.seed) for cell in cells} == {
            (1, 1),
            (2, 2),
            (3, 3),
        }
        methods = {cell.config.method.name for cell in cells}
        # APPLE diverges with a hundred clients, and FedBN is FedAvg without batch norm
        assert set(plugins.names("hpcfl.methods")) - methods <= {"apple", "fedbn"}


def test_the_papers_numbers_stand_beside_those_of_runs(tmp_path):
    """Those of DiversiFed's Table I, on Fashion-MNIST; a line that a run had stays."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text(
        "before\n<!-- table: written by launch/benchmark/beside_paper.py -->\n"
        "old\n<!-- end of table -->\nafter\n"
    )
    command = sys.executable, PROJECT / "launch" / "benchmark" / "beside_paper.py"
    sweep_of = {**FILE, "sweep": {**FILE["sweep"], "method": {"name": ["fedavg"]}}}
    first = hpcfl.run(FILE, out=runs / "both")
    subprocess.run([*command, runs / "both", out], check=True)
    hpcfl.run(sweep_of, out=runs / "one")
    subprocess.run([*command, runs / "one", out], check=True)
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
    assert line.split(" | ")[1:8] == [
        "post",
        "3",
        "10",
        f"{best.mean():.2f} ± {best.std():.2f}",
        "96.10 ± 0.26",
        f"{best.mean() - 96.10:+.2f} *",  # far more than two of the paper's deviations
        f"{tail.mean():.2f} ± {tail.std():.2f}",
    ]
