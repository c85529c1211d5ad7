"""DiversiFed's Table I on Fashion-MNIST: ``python launch/benchmark/beside_paper.py RUNS
OUT``.

RUNS was made by ``launch/diversifed-fashion-mnist.toml``. Written are ``OUT/runs.csv``,
a line for each finished run with its digest (a run that RUNS does not have keeps the
line that it had), and the table in ``OUT/README.md``. The paper reports best rounds
(methods-1.md §7, item 8), so the difference and the places are theirs. ± of an accuracy
is the population's standard deviation over runs with redrawn data, the paper's over
five; ± of a difference is its standard error, which both deviations make.
"""

import sys
from pathlib import Path

import pandas
from write import row

from hpcfl.report import summary

REPORTED = Path(__file__).parents[2] / "results" / "reported.csv"
BEGIN, END = (
    "<!-- table: written by launch/benchmark/beside_paper.py -->",
    "<!-- end of table -->",
)
HEADING = (
    "method",
    "column",
    "runs",
    "rounds",
    "best round, %",
    "paper, %",
    "difference",
    "place, paper's",
    "last tenth, %",
    "drift",
)
PAPERS_RUNS = 5


def main(runs: Path, out: Path) -> None:
    """Write the list of runs, and the table of all methods that it and the paper have."""
    listed = out / "runs.csv"
    frame = pandas.DataFrame(
        [row(run) for run in summary.load_all(runs) if run.summary.finished]
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


def table(frame: pandas.DataFrame) -> str:
    """The table in Markdown, in the paper's order."""
    reported = pandas.read_csv(REPORTED).query("paper == 'diversifed' and table == 'I'")
    reported = reported[
        reported["setting"].str.contains("data.dataset=fashion-mnist", regex=False)
    ]
    names = reported["setting"].str.extract(r"method\.name=(\S+)")[0]
    reported = reported.set_index(names)
    reported = reported[reported.index.isin(frame["method"])]
    by_method = frame.groupby("method")
    own = by_method.mean(numeric_only=True).loc[reported.index]
    deviation = by_method.std(ddof=0, numeric_only=True).loc[reported.index]
    runs = by_method.size().loc[reported.index]
    difference = 100 * own["best"] - reported["value"]
    error = (
        (100 * deviation["best"]) ** 2 / (runs - 1)
        + reported["std"] ** 2 / (PAPERS_RUNS - 1)
    ) ** 0.5
    place = own["best"].rank(ascending=False)
    papers_place = reported["value"].rank(ascending=False)
    lines = [HEADING, ("---", "---", *["---:"] * (len(HEADING) - 2))]
    for name, paper in reported.iterrows():
        best, tail = (
            f"{100 * own[key][name]:.2f} ± {100 * deviation[key][name]:.2f}"
            for key in ("best", "accuracy")
        )
        lines.append(
            (
                str(name),
                by_method["column"].first()[name],
                str(runs[name]),
                str(by_method["rounds"].min()[name]),
                best,
                f"{paper['value']:.2f} ± {paper['std']:.2f}",
                f"{difference[name]:+.2f} ± {error[name]:.2f}",
                f"{place[name]:g}, {papers_place[name]:g}",
                tail,
                f"{100 * own['drift'][name]:+.2f}",
            )
        )
    close = difference.abs() < 1
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines)
        + f"\nRank correlation (Spearman) of the best rounds' order with the paper's: "
        f"{correlation(own['best'], reported['value']):.2f} over all {len(own)}, "
        f"{correlation(own['best'][close], reported['value'][close]):.2f} over the "
        f"{close.sum()} that differ by less than a point.\n"
    )


def correlation(own: pandas.Series, papers: pandas.Series) -> float:
    """Spearman's."""
    return float(own.rank().corr(papers.rank()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
