"""DiversiFed's Table I beside runs of it is made by one command."""

import csv
from pathlib import Path

import numpy as np
import pandas
import pytest

import hpcfl

ROOT = Path(__file__).parents[2]
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
def beside_paper(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch" / "papers"))
    import beside_paper

    return beside_paper


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_those_of_runs(beside_paper, tmp_path):
    """A line that a run had stays where its folder is not given again."""
    out = tmp_path / "out"
    out.mkdir()
    page = out / "README.md"
    page.write_text(f"before\n{beside_paper.BEGIN}\nold\n{beside_paper.END}\nafter\n")
    runs = hpcfl.run(FILE, out=tmp_path / "both")
    beside_paper.main(tmp_path / "both", out)
    only_fedavg = FILE["sweep"] | {"method": {"name": ["fedavg"]}}
    hpcfl.run(FILE | {"sweep": only_fedavg}, out=tmp_path / "one")
    beside_paper.main(tmp_path / "one", out)
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, seed) for method in ("fedavg", "local") for seed in "123"
    ]
    digests = {run.summary.digest for run in runs.values()}
    assert {row["digest"] for row in rows} == digests
    (found,) = (
        run
        for run in runs.values()
        if run.summary.method == "local" and run.config["seed"] == 2
    )
    scored = found.results.values["post/mean"][:10]  # nothing is scored after the last
    assert float(rows[4]["best"]) == scored.max()
    assert float(rows[4]["tail"]) == scored[-1]  # the last tenth of ten rounds
    best, tail = (
        100 * np.array([float(row[key]) for row in rows[3:]])
        for key in ("best", "tail")
    )
    of_fedavg = 100 * np.array([float(row["best"]) for row in rows[:3]])
    begin, *lines, end = page.read_text().splitlines()
    assert (begin, end) == ("before", "after") and "old" not in lines
    (line,) = (line for line in lines if line.startswith("| local"))
    error = (best.var() / 2 + 0.26**2 / 4) ** 0.5  # three runs, and the paper's five
    assert line.removesuffix(" |").split(" | ")[1:] == [
        "post",
        "3",
        f"{best.mean():.2f} ± {best.std():.2f}",
        "96.10 ± 0.26",
        f"{best.mean() - 96.10:+.2f} ± {error:.2f}",
        "2, 1",  # FedAvg is better here, where clients are alike, and worse in the paper
        "+0.00 ± 0.00",
        "+0.00",
        f"{tail.mean():.2f} ± {tail.std():.2f}",
        "+0.00 ± 0.00",
    ]
    (line,) = (line for line in lines if line.startswith("| fedavg"))
    gains = of_fedavg - best
    half = 4.302653 * gains.std(ddof=1) / 3**0.5  # Student's t, two degrees of freedom
    assert line.split(" | ")[7:9] == [f"{gains.mean():+.2f} ± {half:.2f}", "-12.55"]
    assert "-1.00 over all 2" in page.read_text()


def test_the_published_table_is_that_of_the_list_of_runs(beside_paper):
    results = ROOT / "results" / "diversifed"
    table = beside_paper.table(pandas.read_csv(results / "runs.csv"))
    assert table in (results / "README.md").read_text(encoding="utf-8")
