"""Two classes a client beside DiversiFed's Table I: ``python launch/benchmark/beside_paper.py [OUT]``.

Reads ``results/benchmark/runs.csv``, which ``write.py`` wrote, and ``results/reported.csv``; writes the table
in Markdown to OUT, by default ``results/diversifed/fifty-rounds.md``. ± is the population's standard
deviation over runs with redrawn data, ours over three and the paper's over five. A difference is marked that
is larger than a point or than two of the paper's deviations.
"""

import sys
from pathlib import Path

import pandas

RESULTS = Path(__file__).parents[2] / "results"
HEADING = "method", "column", "last tenth, %", "best round, %", "paper, %", "difference", "in the last tenth"


def main(out: Path) -> None:
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
    out.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "diversifed" / "fifty-rounds.md")
