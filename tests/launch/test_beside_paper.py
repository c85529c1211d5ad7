"""One command makes DiversiFed's tables with the paper's numbers and those of runs."""

import csv
import re

import numpy as np
import pandas
import pytest
from places import ROOT

import hpcfl

FILE = {
    "rounds": 10,
    "data": {"dataset": "digits"},
    "partition": {"scheme": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch_size": 100},
    "evaluation": {"metric": "mean"},
    "method": {"name": "fedavg"},
}
SWEEP = {
    "runs": [{"seed": seed, "partition": {"seed": seed}} for seed in (1, 2, 3)],
    "method": {"name": ["fedavg", "local"]},
}
# Numbers that a paper would print for these runs, and for others that were not run.
REPORTED = """paper,table,method,setting,metric,value,std,note
diversifed,I,FedAvg,data.dataset=digits partition.clients=6 method.name=fedavg,acc,83.55,1.16,
diversifed,I,FedAvg,data.dataset=mnist partition.clients=6 method.name=fedavg,acc,91.19,1.05,
diversifed,I,Local,data.dataset=digits partition.clients=6 method.name=local,acc,96.10,0.26,
diversifed,II,Local,data.dataset=digits partition.clients=6 method.name=local,acc,50.00,0.50,
"""
BEGIN = "<!-- table I: written by launch/papers/beside_paper.py -->"
END = "<!-- end of table I -->"
LOCAL = "method.name=local"
DECIMAL = re.compile(r"[+-]?\d+\.\d+")


@pytest.fixture
def beside_paper(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch" / "papers"))
    import beside_paper

    return beside_paper


@pytest.fixture
def out(beside_paper, monkeypatch, tmp_path):
    """Return a page for the table of a paper that prints ``REPORTED``."""
    reported = tmp_path / "reported.csv"
    reported.write_text(REPORTED)
    monkeypatch.setattr(beside_paper, "REPORTED", reported)
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return out


@pytest.mark.slow
def test_tables_compare_the_papers_numbers_with_those_of_runs(
    beside_paper, out, tmp_path
):
    """The line of an earlier run remains if its folder is not given again."""
    runs = hpcfl.run(FILE | {"sweep": SWEEP}, out=tmp_path / "both", progress=False)
    beside_paper.main(tmp_path / "both", "I", LOCAL, out)
    only_fedavg = SWEEP | {"method": {"name": ["fedavg"]}}
    hpcfl.run(FILE | {"sweep": only_fedavg}, out=tmp_path / "one", progress=False)
    beside_paper.main(tmp_path / "one", "I", LOCAL, out)
    with (out / "table-I.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method.name"], row["seed"]) for row in rows] == [
        (method, seed) for method in ("fedavg", "local") for seed in "123"
    ]
    digests = {run.summary.digest for run in runs.values()}
    assert {row["digest"] for row in rows} == digests
    (found,) = (
        run
        for run in runs.values()
        if run.summary.method == "local" and run.config["seed"] == 2
    )
    scored = found.results.values["post/mean"][:10]  # no scoring after the last round
    assert float(rows[4]["best"]) == pytest.approx(scored.max())
    assert float(rows[4]["tail"]) == pytest.approx(
        scored[-1]
    )  # the last tenth of ten rounds
    best, tail = (
        100 * np.array([float(row[key]) for row in rows[3:]])
        for key in ("best", "tail")
    )
    of_fedavg = 100 * np.array([float(row["best"]) for row in rows[:3]])
    page = (out / "README.md").read_text()
    begin, *lines, end = page.splitlines()
    assert (begin, end) == ("before", "after") and "old" not in lines
    (line,) = (line for line in lines if line.startswith("| local"))
    error = (best.var(ddof=1) / 3 + 0.26**2 / 4) ** 0.5  # and the paper's five runs
    assert line.removesuffix(" |").split(" | ")[1:] == [
        "post",
        "3",
        f"{best.mean():.2f} ± {best.std(ddof=1):.2f}",
        "96.10 ± 0.26",
        f"{best.mean() - 96.10:+.2f} ± {error:.2f}",
        "2, 1",  # FedAvg is better on similar clients here, and worse in the paper
        "+0.00 ± 0.00",
        "+0.00",
        f"{tail.mean():.2f} ± {tail.std(ddof=1):.2f}",
        "+0.00 ± 0.00",
    ]
    (line,) = (line for line in lines if line.startswith("| fedavg"))
    gains = of_fedavg - best
    half = 4.302653 * gains.std(ddof=1) / 3**0.5  # Student's t, two degrees of freedom
    assert line.split(" | ")[7:9] == [f"{gains.mean():+.2f} ± {half:.2f}", "-12.55"]
    assert "Rank correlation" not in page  # two values have no meaningful order


@pytest.mark.slow
def test_cells_are_ranked_only_against_otherwise_equal_cells(
    beside_paper, out, tmp_path
):
    """Places and differences are computed from cells that differ only in the compared
    key. With the paper's deviation 0.5 over five runs a single run has the variance
    5·0.25/4, and the paper's mean a fifth of it: the difference has the error
    (6·0.0625)^½ = 0.61.
    """
    cells = "".join(
        f"diversifed,I,FedAvg,partition.clients={clients} training.lr={lr},acc,"
        f"{value},0.50,\n"
        for clients, lr, value in ((6, 0.1, 50), (6, 0.2, 60), (5, 0.1, 90))
    )
    heading, _, _ = REPORTED.partition("\n")
    beside_paper.REPORTED.write_text(f"{heading}\n{cells}")
    grid = {"partition": {"clients": [5, 6]}, "training": {"lr": [0.1]}}
    hpcfl.run(FILE | {"sweep": grid}, out=tmp_path / "grid", progress=False)
    hpcfl.run(
        FILE | {"sweep": {"training": {"lr": [0.2]}, "partition": {"clients": [6]}}},
        out=tmp_path / "rate",
        progress=False,
    )
    beside_paper.main(tmp_path / "grid", "I", "training.lr=0.1", out)
    beside_paper.main(tmp_path / "rate", "I", "training.lr=0.1", out)
    page = (out / "README.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line[2:3].isdigit()]
    assert [row[:2] for row in rows] == [["| 6", "0.1"], ["| 6", "0.2"], ["| 5", "0.1"]]
    slow, fast, alone = (float(row[4]) for row in rows)
    differences, errors = zip(*(row[6].split(" ± ") for row in rows), strict=True)
    assert [float(difference) for difference in differences] == pytest.approx(
        [slow - 50, fast - 60, alone - 90], abs=0.011
    )
    assert set(errors) == {"0.61"}
    assert [float(row[8]) for row in rows] == pytest.approx(
        [0, fast - slow, 0], abs=0.011
    )
    assert [row[7] for row in rows[2:]] == ["1, 1"]


def test_orders_are_compared_by_their_ranks(beside_paper):
    """Ranks 1 2 3 4 and 1 3 2 4: 1 − 6·(1 + 1)/(4·15) = 0.8. Of the three close values
    the first two have exchanged places: 1 − 6·(1 + 1)/(3·8) = 0.5.
    """
    numbers = pandas.DataFrame(
        {
            "data.dataset": "digits",
            "rank": [4, 3, 2, 1],
            "papers_rank": [4, 2, 3, 1],
            "difference": [-10.0, -0.5, 0.1, 0.1],
        }
    )
    text = beside_paper.describe_order(numbers, ["data.dataset"])
    assert "data.dataset=digits: 0.80 over all 4 cells, 0.50 over the 3 cells" in text
    two = numbers.iloc[:2]
    assert beside_paper.describe_order(two, []) == ""


def test_ranks_are_computed_from_common_seeds(beside_paper):
    """FedAvg is 2 points above Local in the only run that both have, whose data are
    difficult; the mean of Local's two runs is above FedAvg's.
    """
    cells = pandas.DataFrame(
        {"method.name": ["local", "fedavg"], "value": [60.0, 50.0], "std": [0.5, 0.5]}
    )
    runs = [("local", 1, 0.50), ("local", 2, 0.90), ("fedavg", 1, 0.52)]
    frame = pandas.DataFrame(runs, columns=["method.name", "seed", "best"])
    frame = frame.assign(tail=frame["best"], column="post")
    numbers = beside_paper.compute_numbers(cells, frame, "method.name", "local")
    assert numbers["rank"].to_dict() == {"local": 2, "fedavg": 1}
    assert numbers["best"].to_dict() == {"local": 70, "fedavg": 52}
    assert numbers["best_gain"].to_dict() == {"local": 0, "fedavg": 2}


def test_a_run_that_is_no_cell_of_the_table_is_refused(beside_paper, out, tmp_path):
    run = FILE | {"partition": {"scheme": "iid", "clients": 3}}
    hpcfl.run(run, out=tmp_path / "other")
    with pytest.raises(SystemExit, match="/other: "):
        beside_paper.main(tmp_path / "other", "I", LOCAL, out)


def test_a_table_without_its_reference_is_refused(beside_paper, out, tmp_path):
    hpcfl.run(FILE, out=tmp_path / "fedavg")
    with pytest.raises(SystemExit, match=rf"^{LOCAL}: "):
        beside_paper.main(tmp_path / "fedavg", "I", LOCAL, out)


@pytest.mark.parametrize(
    ("number", "reference"), [("I", LOCAL), ("II", LOCAL), ("V", "method.tau=1.0")]
)
def test_the_published_table_is_that_of_the_list_of_runs(
    beside_paper, number, reference
):
    results = ROOT / "results" / "diversifed"
    listed = pandas.read_csv(results / f"table-{number}.csv")
    words, numbers = split_numbers(beside_paper.render_table(listed, number, reference))
    name = "README.md" if number == "I" else "details.md"
    page = (results / name).read_text(encoding="utf-8")
    published = page[page.index(f"<!-- table {number}:") :].split("\n", 1)[1]
    their_words, their_numbers = split_numbers(published)
    assert their_words.lstrip().startswith(words)
    # Versions of pandas differ in the last digit of a tie.
    assert their_numbers[: len(numbers)] == pytest.approx(numbers, abs=0.0101)


def split_numbers(text):
    """Return a text without its decimal numbers, and the numbers."""
    numbers = [float(number) for number in DECIMAL.findall(text)]
    return DECIMAL.sub("#", text), numbers
