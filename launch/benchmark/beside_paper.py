"""DiversiFed's Table I on Fashion-MNIST: ``python launch/benchmark/beside_paper.py RUNS OUT``.

RUNS was made by ``launch/diversifed-fashion-mnist.toml``. Written are ``OUT/runs.csv``, a line for each
finished run with its digest (a run that RUNS does not have keeps the line that it had), and the table in
``OUT/README.md``. The paper reports best rounds (methods-1.md §7, item 8), so the difference is theirs; it is
marked where it is larger than a point or than two of the paper's deviations. ± is the population's standard
deviation over runs with redrawn data, the paper's over five.
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
    "last tenth, %",
    "in the last tenth",
)


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
    lines = [HEADING, ("---", "---", *["---:"] * (len(HEADING) - 2))]
    for _, paper in reported.iterrows():
        name = paper["setting"].partition("method.name=")[2].split()[0]
        own = frame[frame["method"] == name]
        if own.empty:
            continue
        best, tail = (
            f"{100 * own[key].mean():.2f} ± {100 * own[key].std(ddof=0):.2f}"
            for key in ("best", "accuracy")
        )
        difference = 100 * own["best"].mean() - paper["value"]
        mark = " *" if abs(difference) > min(1, 2 * paper["std"]) else ""
        lines.append(
            (
                name,
                own["column"].iloc[0],
                str(len(own)),
                str(own["rounds"].min()),
                best,
                f"{paper['value']:.2f} ± {paper['std']:.2f}",
                f"{difference:+.2f}{mark}",
                tail,
                f"{100 * own['drift'].mean():+.2f}",
            )
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
