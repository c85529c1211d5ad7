"""Write the page of a setting with repeated searches.

``python launch/tuned/head.py SETTING OUT`` reads these files and writes ``OUT/head-SETTING.md``:

* ``head-SETTING.toml`` beside this file: the claims, one comment line per verdict;
* ``OUT/head-SETTING.tar.xz``: final runs of all searches;
* ``OUT/head-SETTING.csv``: ``searches.csv`` of the tuning.

Accuracies are those of the last tenth of the rounds. Gains, intervals and verdicts are
those of ``hpcfl table --at tail --against local --margin 0.5``.
"""

import re
import sys
from pathlib import Path

import pandas
from write import format_gain

from hpcfl.report.arrangement import arrange
from hpcfl.report.comparison import Gains, Reference, compute_gains, tabulate
from hpcfl.report.metric_values import Reading
from hpcfl.trained import loading

HERE = Path(__file__).parent
AT = "tail"
REFERENCE = "local"
MARGIN = 0.5  # points of accuracy within which two methods count as the same
PERCENT = 100
# Verdicts that confirm a claim, and verdicts that refute it; "open" does neither.
CONFIRMS = {
    "better": {"better"},
    "same": {"same"},
    "worse": {"worse"},
    "not better": {"worse", "same"},
    "not worse": {"better", "same"},
}
VERDICTS = {"better", "same", "worse"}
COMPONENTS = ("search", "partition", "training")
LEGEND = """Mean accuracy over clients, ten partitions and all searches in %, in the last tenth
of the rounds.

* *Gain over Local* is in points, of each client, with an interval of 95 % from a mixed
  model of search, partition and training seed.
* *Bootstrap* is half of the interval from a bootstrap of searches and partitions, as a
  check.
* *Verdict* is at the level of 5 % with Holm's correction; *same* means within ± 0.5
  points.
* *Clients below Local* is the share of clients whose accuracy is lower than under Local.
* *Claim* was written into the launch file before any run. The verdict confirms it,
  refutes it or leaves it open; a gain within the margin also confirms *same*.
* *Search*, *partition* and *training* are standard deviations of the accuracy, in points.
* *Spent/budget* counts training gradients of the searches.
* *Searches* is the number of searches that chose a configuration. A search chooses none
  if its first rungs spend the budget.
"""
TITLES = (
    "method",
    "accuracy",
    "gain over Local ± 95 %",
    "bootstrap",
    "verdict",
    "clients below Local",
    "claim",
    "",
    *COMPONENTS,
    "spent/budget",
    "searches",
)


def main(setting: str, out: Path) -> None:
    """Write the page of a setting into the folder ``out``."""
    claims = read_claims((HERE / f"head-{setting}.toml").read_text(encoding="utf-8"))
    searches = pandas.read_csv(out / f"head-{setting}.csv", index_col="method")
    gains = compute_all_gains(out / f"head-{setting}.tar.xz")
    text = write_page(setting, claims, searches, gains)
    (out / f"head-{setting}.md").write_text(text, encoding="utf-8")


def read_claims(launch_file: str) -> dict[str, str]:
    """Return the claim about each method, from the comments of a launch file."""
    claims: dict[str, str] = {}
    for claim in CONFIRMS:
        for line in re.findall(rf"^#   {claim}: (.+)$", launch_file, re.MULTILINE):
            claims |= dict.fromkeys(line.split(", "), claim)
    return claims


def compute_all_gains(packed: Path) -> dict[str, Gains]:
    """Return the gains of each method over Local by entry of ``tune.methods``."""
    rows = ["method.name", "evaluation.score"]
    arranged = arrange(loading.list_runs(packed), rows, ["data.dataset"])
    [column] = arranged.columns
    cells = {name_entry(row): runs for row, runs in arranged.column(column).items()}
    reference = cells.pop(REFERENCE)
    gains = {}
    for entry, runs in cells.items():
        reading = Reading(runs[0].run.metric, AT)
        found = compute_gains(runs, reference, reading)
        assert found is not None, f"{entry} and {REFERENCE} share no partition"
        gains[entry] = found
    return gains


def name_entry(row: str) -> str:
    """Return the entry of ``tune.methods`` for a row such as "fedavg score=tuned_5"."""
    method, _, score = row.partition(" score=")
    return method if score == "method" else f"{method} at {score}"


def judge(claim: str, verdict: str, is_same: bool) -> str:
    """Return whether a gain confirms a claim, refutes it, or leaves it open.

    Args:
        claim: Claim about the method.
        verdict: Verdict of the table. A small gain can be "better" and the same.
        is_same: Whether the gain is within the margin at the level of 5 %.
    """
    if verdict in CONFIRMS[claim] or (claim == "same" and is_same):
        return "confirmed"
    return "refuted" if verdict in VERDICTS else "open"


def write_page(
    setting: str,
    claims: dict[str, str],
    searches: pandas.DataFrame,
    gains: dict[str, Gains],
) -> str:
    """Return the page in Markdown.

    Args:
        setting: Name of the setting.
        claims: Claim about each method.
        searches: Table ``searches.csv`` with a row for each method.
        gains: Gains of each method over Local.
    """
    compared = tabulate(gains, Reference(REFERENCE, margin=MARGIN), PERCENT)
    lines = ["| " + " | ".join(TITLES) + " |", "|---" * len(TITLES) + "|"]
    outcomes: list[str] = []
    for method in searches["mean"].sort_values(ascending=False).index:
        cells = ["–"] * 6
        if method != REFERENCE:
            cells = describe_gain(compared.loc[method], gains[method], claims[method])
            outcomes.append(cells[-1])
        lines.append("| " + " | ".join(describe(method, searches, cells)) + " |")
    counts = [f"{outcomes.count(name)} {name}" for name in ("confirmed", "refuted")]
    counts.append(f"{outcomes.count('open')} open")
    summary = f"Of {len(outcomes)} claims {', '.join(counts)}."
    title = f"# Tuned methods with five searches: {setting}"
    return f"{title}\n\n{summary}\n\n{LEGEND}\n" + "\n".join(lines) + "\n"


def describe(method: str, searches: pandas.DataFrame, compared: list[str]) -> list[str]:
    """Return the cells of a method's line.

    Args:
        method: Entry of ``tune.methods``.
        searches: Table ``searches.csv`` with a row for each method.
        compared: Cells of the comparison with Local.
    """
    row = searches.loc[method]
    deviations = [f"{PERCENT * row[name]:.2f}" for name in COMPONENTS]
    accuracy = f"{PERCENT * row['mean']:.2f}"
    search = [f"{row['spent/budget']:.2f}", f"{row['searches']:.0f}"]
    return [method, accuracy, *compared, *deviations, *search]


def describe_gain(row: pandas.Series, gains: Gains, claim: str) -> list[str]:
    """Return gain, bootstrap, verdict, clients below Local, claim and outcome."""
    return [
        format_gain(gains),
        f"{PERCENT * gains.bootstrap:.2f}",
        row["verdict"],
        f"{row['hurt']:.0f} %",
        claim,
        judge(claim, row["verdict"], gains.interval.is_within(MARGIN / PERCENT)),
    ]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
