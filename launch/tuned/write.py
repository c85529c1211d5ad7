"""The page of a setting of the tuned table: ``python launch/tuned/write.py SETTING OUT``.

Reads ``OUT/SETTING.tar.xz``, the final runs of what every method was tuned to,
``OUT/SETTING-untuned.tar.xz``, those of what it has by itself, and where it is there
``OUT/SETTING-twice.tar.xz``, the tuned ones of the first seed for twice the rounds, and
writes ``OUT/SETTING.md``. All numbers are means of the last tenth of the rounds; intervals are
those of ``hpcfl table --against``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas

from hpcfl.report import reading, summary
from hpcfl.report.arrangement import Placed, arrange
from hpcfl.report.comparison import Gains, gains_of
from hpcfl.report.significance import LEVEL, holm

TUNED = "tuned_5"  # start models after five epochs of a client's own training
ROWS, COLUMNS = ["method.name"], ["data.dataset"]
LEGEND = """Mean accuracy over clients and twelve partitions in %, as mean of the last tenth of the
rounds. *Own models* are those that a method is read by: `pre` and `post` a client's own
training in a round, or `tuned` after it at the end. Gains are in points, of each client,
with intervals of 95 % (`hpcfl table --against`): *by tuning* beside the same method
as it is by itself, *beside Local* beside training alone, with the share of clients who
have less than that. *After 5 epochs* are everybody's start models after five epochs of
plain training at scoring, with the rate chosen for the own models, beside FedAvg's;
"better" and "worse" hold after Holm's correction. What follows: [README](README.md)."""
TITLES = {
    "method": "method",
    "column": "own models",
    "own": "accuracy",
    "by_tuning": "by tuning ± 95 %",
    "beside_local": "beside Local ± 95 %",
    "hurt": "hurt",
    TUNED: "after 5 epochs",
    "beside_fedavg": "beside FedAvg's ± 95 %",
    "verdict": "",
}


def main(setting: str, out: Path) -> None:
    """Write a setting's page."""
    tuned = of_methods(out / f"{setting}.tar.xz")
    untuned = of_methods(out / f"{setting}-untuned.tar.xz")
    frame = numbers(tuned, untuned)
    text = f"{page(setting, frame)}\n{closing(tuned, untuned, frame)}"
    twice = out / f"{setting}-twice.tar.xz"
    if twice.is_file():
        text += convergence(tuned, of_methods(twice))
    (out / f"{setting}.md").write_text(text, encoding="utf-8")


def of_methods(packed: Path) -> dict[str, list[Placed]]:
    """The final runs of each method, in the order of their seeds."""
    arranged = arrange(summary.load_all(packed), ROWS, COLUMNS)
    (column,) = arranged.columns
    return arranged.column(column)


def numbers(
    tuned: dict[str, list[Placed]], untuned: dict[str, list[Placed]]
) -> pandas.DataFrame:
    """The page's numbers in %, a line for each method, the best own models first."""
    lines = []
    for method, cells in tuned.items():
        local = gains(cells, tuned["local"])
        assert local is not None, f"{method} and local share no partition"
        lines.append(
            {
                "method": method,
                "column": cells[0].run.score,
                "own": mean(cells),
                "by_tuning": gains(cells, untuned.get(method, [])),
                "beside_local": local,
                "hurt": 100 * local.hurt,
                TUNED: mean(cells, TUNED),
                "beside_fedavg": gains(cells, tuned["fedavg"], TUNED),
            }
        )
    frame = pandas.DataFrame(lines).set_index("method")
    frame["verdict"] = verdicts(frame["beside_fedavg"].drop("fedavg"))
    return frame.sort_values("own", ascending=False)


def mean(cells: Sequence[Placed], models: str = "") -> float:
    """The mean accuracy over clients and partitions of a column of models, in %."""
    of_runs = []
    for placed in cells:
        metric = f"{models}/mean" if models else placed.run.metric
        of_runs.append(reading.value(placed.run, metric, "tail").value)
    return 100 * float(np.mean(of_runs))


def gains(
    cells: Sequence[Placed], reference: Sequence[Placed], models: str = ""
) -> Gains | None:
    """What clients gain beside a reference on the same partitions; None for models that
    a method does not have.
    """
    return gains_of(cells, reference, cells[0].run.measure, "tail", models)


def verdicts(compared: pandas.Series) -> pandas.Series:
    """Better, worse, or nothing for what Holm's correction leaves open."""
    compared = compared.dropna()
    corrected = holm(np.array([one.interval.p for one in compared]))
    words = []
    for one, p in zip(compared, corrected, strict=True):
        sign = "better" if one.interval.mean > 0 else "worse"
        words.append(sign if p < LEVEL else "")
    return pandas.Series(words, compared.index)


def page(setting: str, frame: pandas.DataFrame) -> str:
    """The table in Markdown."""
    shown = frame.copy()
    for name in ("by_tuning", "beside_local", "beside_fedavg"):
        shown[name] = frame[name].map(with_interval)
    for name in ("own", TUNED):
        shown[name] = frame[name].map("{:.2f}".format, na_action="ignore").fillna("–")
    shown["hurt"] = frame["hurt"].map("{:.0f} %".format)
    shown["verdict"] = frame["verdict"].fillna("–")
    lines = ["| " + " | ".join(TITLES.values()) + " |", "|---" * len(TITLES) + "|"]
    for method, row in shown.iterrows():
        cells = [method, *(row[name] for name in list(TITLES)[1:])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return f"# The tuned table: {setting}\n\n{LEGEND}\n\n" + "\n".join(lines) + "\n"


def closing(
    tuned: dict[str, list[Placed]],
    untuned: dict[str, list[Placed]],
    frame: pandas.DataFrame,
) -> str:
    """What tuning and the moment of scoring change, in three sentences."""
    by_tuning = verdicts(frame["by_tuning"])
    worse = ", ".join(by_tuning.index[by_tuning == "worse"])
    at_fixed_rate = gains(untuned["fedavg"], tuned["fedavg"], TUNED)
    own_untuned = pandas.Series({name: mean(cells) for name, cells in untuned.items()})
    both = pandas.DataFrame({"own": frame["own"], "untuned": own_untuned}).dropna()
    with_untuned = both["own"].corr(both["untuned"], method="spearman")
    with_trained = frame["own"].rank().corr(frame[TUNED].rank())
    return (
        f"After Holm's correction tuning gives {sum(by_tuning == 'better')} methods more "
        f"and {sum(by_tuning == 'worse')} less{worse and f' ({worse})'}.\n"
        "After five epochs FedAvg's models have with the file's rate "
        f"{mean(untuned['fedavg'], TUNED):.2f} %, {with_interval(at_fixed_rate)} beside "
        "those with the chosen one.\n"
        f"Spearman's correlation of own models, tuned, is {with_untuned:.2f} with the "
        f"untuned ones and {with_trained:.2f} with start models after five epochs.\n"
    )


def convergence(tuned: dict[str, list[Placed]], twice: dict[str, list[Placed]]) -> str:
    """What twice the rounds change on the partition that they were played on."""
    lines = []
    for method, cells in twice.items():
        seed = cells[0].setting["seed"]
        once = [placed for placed in tuned[method] if placed.setting["seed"] == seed]
        lines.append({"once": mean(once), "twice": mean(cells)})
    both = pandas.DataFrame(lines, index=list(twice))
    gain = both["twice"] - both["once"]
    of_some = [f"{name} {gain[name]:+.1f}" for name in ("fedavg", "local")]
    return (
        f"With twice the rounds {sum(gain > 0)} of {len(gain)} methods have more on the "
        f"first partition, in the median {gain.median():+.1f} points "
        f"({', '.join(of_some)}); Spearman's correlation of both orders is "
        f"{both['once'].corr(both['twice'], method='spearman'):.2f}.\n"
    )


def with_interval(of_row: Gains | None) -> str:
    """A mean gain in points of accuracy with half of its interval."""
    if of_row is None:
        return "–"
    of_mean = of_row.interval
    return f"{100 * of_mean.mean:+.2f} ± {100 * of_mean.half:.2f}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
