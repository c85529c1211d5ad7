"""DiversiFed's Table I on Fashion-MNIST: ``python launch/papers/beside_paper.py RUNS
OUT``.

RUNS, a folder or a packed file, has runs of ``launch/papers/diversifed-1.toml``. Written
are ``OUT/runs.csv``, a line for each finished run with its digest (a run that RUNS does
not have keeps the line that it had), and the table in ``OUT/README.md``. The paper
reports best rounds (methods-1.md §7, item 8), so the difference and the places are
theirs. ± of an accuracy is the population's standard deviation over runs with redrawn
data, the paper's over five; ± of a difference is its standard error, which both
deviations make. All methods share a run's data, so that their differences to Local in
the same runs, with intervals of 95 % by Student's t, say more than the accuracies do.
"""

import sys
from pathlib import Path
from typing import Any

import pandas
from scipy.stats import t as student

from hpcfl.report import reading, summary
from hpcfl.report.summary import Run

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
BEGIN, END = (
    "<!-- table: written by launch/papers/beside_paper.py -->",
    "<!-- end of table -->",
)
HEADING = (
    "method",
    "column",
    "runs",
    "best round, %",
    "paper, %",
    "difference",
    "place, paper's",
    "beside Local",
    "paper's",
    "last tenth, %",
    "beside Local",
)
PAPERS_RUNS = 5


def main(runs: Path, out: Path) -> None:
    """Write the list of runs, and the table of all methods that it and the paper have."""
    listed = out / "runs.csv"
    frame = pandas.DataFrame(
        [line(run) for run in summary.load_all(runs) if run.summary.finished]
    )
    if listed.exists():
        frame = pandas.concat([frame, pandas.read_csv(listed)])
    frame = frame.drop_duplicates(["method", "seed"]).sort_values(["method", "seed"])
    frame.to_csv(listed, index=False)
    page = out / "README.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    page.write_text(
        f"{before}{begin}\n\n{table(frame)}\n{end}{after}", encoding="utf-8"
    )


def line(run: Run) -> dict[str, Any]:
    """What is listed of a run, accuracies in [0, 1]."""
    return {
        "method": run.summary.method,
        "seed": run.config["seed"],
        "rounds": run.summary.rounds,
        "column": run.score,
        "best": reading.value(run, run.metric, "best").value,
        "tail": reading.value(run, run.metric, "tail").value,
        "digest": run.summary.digest,
    }


def table(frame: pandas.DataFrame) -> str:
    """The table in Markdown, in the paper's order."""
    reported = of_paper(frame["method"])
    by_method = frame.groupby("method")
    runs = by_method.size().loc[reported.index]
    column = by_method["column"].first()
    accuracies = 100 * frame.set_index("method")[["best", "tail"]]
    own = accuracies.groupby("method").mean().loc[reported.index]
    deviation = accuracies.groupby("method").std(ddof=0).loc[reported.index]
    difference = own["best"] - reported["value"]
    own_error = deviation["best"] ** 2 / (runs - 1)
    papers_error = reported["std"] ** 2 / (PAPERS_RUNS - 1)
    error = (own_error + papers_error) ** 0.5
    place = own["best"].rank(ascending=False)
    papers_place = reported["value"].rank(ascending=False)
    papers_local = reported["value"]["local"]
    lines = [HEADING, ("---", "---", *["---:"] * (len(HEADING) - 2))]
    for name, paper in reported.iterrows():
        best, tail = (
            f"{own[key][name]:.2f} ± {deviation[key][name]:.2f}"
            for key in ("best", "tail")
        )
        cells = (
            str(name),
            column[name],
            str(runs[name]),
            best,
            f"{paper['value']:.2f} ± {paper['std']:.2f}",
            f"{difference[name]:+.2f} ± {error[name]:.2f}",
            f"{place[name]:g}, {papers_place[name]:g}",
            beside_local(frame, str(name), "best"),
            f"{paper['value'] - papers_local:+.2f}",
            tail,
            beside_local(frame, str(name), "tail"),
        )
        lines.append(cells)
    close = difference.abs() < 1
    of_all = own["best"].corr(reported["value"], method="spearman")
    of_close = own["best"][close].corr(reported["value"][close], method="spearman")
    return (
        "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        + f"\nRank correlation (Spearman) of the best rounds' order with the paper's: "
        f"{of_all:.2f} over all {len(own)}, {of_close:.2f} over the {close.sum()} that "
        f"differ by less than a point.\n"
    )


def beside_local(frame: pandas.DataFrame, method: str, key: str) -> str:
    """The mean difference to Local in the same runs, in points, ± half of its interval
    of 95 %.
    """
    accuracies = 100 * frame.pivot(index="seed", columns="method", values=key)
    differences = (accuracies[method] - accuracies["local"]).dropna()
    error = differences.sem()
    half = student.ppf(0.975, len(differences) - 1) * error
    return f"{differences.mean():+.2f} ± {half:.2f}"


def of_paper(methods: pandas.Series) -> pandas.DataFrame:
    """The paper's lines of ``methods``, in its order."""
    reported = pandas.read_csv(REPORTED).query("paper == 'diversifed' and table == 'I'")
    setting = reported["setting"]
    of_data = setting.str.contains("data.dataset=fashion-mnist", regex=False)
    names = setting.str.extract(r"method\.name=(\S+)")[0]
    reported = reported[of_data].set_index(names[of_data])
    return reported[reported.index.isin(methods)]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
