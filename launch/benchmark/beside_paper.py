"""Two classes a client beside DiversiFed's Table I: ``python launch/benchmark/beside_paper.py``.

Reads ``results/benchmark/runs.csv``, which ``write.py`` wrote, and ``results/reported.csv``; writes the table
in ``results/diversifed/README.md``. ± is the population's standard deviation over runs with redrawn data,
ours over three and the paper's over five. A difference is marked that is larger than a point or than two of
the paper's deviations.
"""

from pathlib import Path

import pandas

RESULTS = Path(__file__).parents[2] / "results"
BEGIN, END = "<!-- table: written by launch/benchmark/beside_paper.py -->", "<!-- end of table -->"
HEADING = "method", "column", "last tenth, %", "best round, %", "paper, %", "difference", "in the last tenth"


def main() -> None:
    """Write the table of all methods that both have, in the paper's order."""
    runs = pandas.read_csv(RESULTS / "benchmark" / "runs.csv").query("setting == 'two-classes'")
    reported = pandas.read_csv(RESULTS / "reported.csv").query("paper == 'diversifed' and table == 'I'")
    reported = reported[reported["setting"].str.contains("data.dataset=fashion-mnist", regex=False)]
    lines = [HEADING, ("---", "---", *["---:"] * 5)]
    for _, paper in reported.iterrows():
        name = paper["setting"].partition("method.name=")[2].split()[0]
        own = runs[runs["method"] == name]
        found = [f"{100 * own[key].mean():.2f} ± {100 * own[key].std(ddof=0):.2f}"
                 for key in ("accuracy", "best")]
        difference = 100 * own["accuracy"].mean() - paper["value"]
        mark = " *" if abs(difference) > min(1, 2 * paper["std"]) else ""
        lines.append((name, own["column"].iloc[0], *found, f"{paper['value']:.2f} ± {paper['std']:.2f}",
                      f"{difference:+.2f}{mark}", f"{100 * own['drift'].mean():+.2f}"))
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    page = RESULTS / "diversifed" / "README.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
