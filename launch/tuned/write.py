"""Write the page of a setting of the tuned table: ``python launch/tuned/write.py SETTING
OUT``.

The command reads these files and writes ``OUT/SETTING.md``:

* ``OUT/SETTING.tar.xz``: final runs of the tuned methods;
* ``OUT/SETTING-untuned.tar.xz``: final runs of the untuned methods;
* ``OUT/SETTING.csv``, optional: table of the search;
* ``OUT/SETTING-twice.tar.xz``, optional: tuned runs of the first seed with twice the
  rounds.

All numbers are means over the last tenth of the rounds. Intervals are computed as for
``hpcfl table --against``.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas

from hpcfl.report import metric_values
from hpcfl.report.arrangement import Placed, arrange
from hpcfl.report.comparison import Gains, compute_gains
from hpcfl.report.inference import LEVEL, correct, estimate_interval
from hpcfl.report.metric_values import Reading
from hpcfl.trained import loading

TUNED = "tuned_5"  # start models after five epochs of local training
RESAMPLES = 999
ROWS, COLUMNS = ["method.name"], ["data.dataset"]
DATA = {
    False: "Each partition draws its samples from the same pool, so that some are in several.",
    True: "All partitions, the search's too, deal out the same images anew: ± is over\n"
    "deals and starting points, not over draws of images.",
}
LEGEND = """Mean accuracy over clients and twelve partitions in %, as mean of the last tenth of the
rounds. {data}
Gains are in points, of each client, with intervals of 95 % (`hpcfl table --against`).
All intervals are conditional on one search.

* *Own models*: the models that a method is judged by. `pre` and `post` are those before
  and after a client's training in a round, `tuned` those after the last round. `pre` of
  FedAvg-C and FedProx-C is after the fine-tuning at the start of a round
  (`method.tune_epochs`), `pre` of Per-FedAvg after one step.
* *By tuning*: gain over the same method without tuning.
* *Beside Local*: gain over training alone. *Hurt*: the share of clients that lose.
* *After 5 epochs*: the start models of all clients after five epochs of plain training
  at scoring, with the rate chosen for the own models. *Beside FedAvg's*: gain over
  FedAvg's. *Verdict*: better or worse after Holm's correction.
* *Beside untuned Local*: gain over training alone at the file's rate.
* *Spent/budget*: gradients of the search.

The range behind a correlation holds the middle 95 % of its values over draws of the
partitions. It is narrower than an interval of 95 %, and it does not cover other methods
or another search. [README](README.md) has the conclusions."""
TITLES = {
    "method": "method",
    "column": "own models",
    "own": "accuracy",
    "by_tuning": "by tuning ± 95 %",
    "beside_local": "beside Local ± 95 %",
    "hurt": "hurt ± 95 %",
    TUNED: "after 5 epochs",
    "beside_fedavg": "beside FedAvg's ± 95 %",
    "verdict": "verdict",
    "beside_untuned_local": "beside untuned Local ± 95 %",
    "spent": "spent/budget",
}


def main(setting: str, out: Path) -> None:
    """Write the page of a setting.

    Args:
        setting: Name of the setting.
        out: Folder of the runs and the page.
    """
    tuned = of_methods(out / f"{setting}.tar.xz")
    untuned = of_methods(out / f"{setting}-untuned.tar.xz")
    frame = numbers(tuned, untuned)
    searched = out / f"{setting}.csv"
    if searched.is_file():
        frame["spent"] = spent(searched)
    deals = deals_same_images(tuned["local"])
    text = f"{page(setting, frame, deals)}\n{conclude(tuned, untuned, frame)}"
    twice = out / f"{setting}-twice.tar.xz"
    if twice.is_file():
        text += convergence(tuned, of_methods(twice), frame)
    (out / f"{setting}.md").write_text(text, encoding="utf-8")


def deals_same_images(runs: Sequence[Placed]) -> bool:
    """Return whether all partitions of these runs distribute the same images."""
    data = runs[0].run.config["data"]
    return data.get("samples") is not None and not data.get("redraw")


def of_methods(packed: Path) -> dict[str, list[Placed]]:
    """Return the final runs of each method, in the order of their seeds."""
    arranged = arrange(loading.list_runs(packed), ROWS, COLUMNS)
    (column,) = arranged.columns
    return arranged.column(column)


def numbers(
    tuned: dict[str, list[Placed]], untuned: dict[str, list[Placed]]
) -> pandas.DataFrame:
    """Return the page's numbers in %, a row for each method, best own models first."""
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
                "hurt": share_hurt(local),
                TUNED: mean(cells, TUNED),
                "beside_fedavg": gains(cells, tuned["fedavg"], TUNED),
                "beside_untuned_local": gains(cells, untuned["local"]),
            }
        )
    frame = pandas.DataFrame(lines).set_index("method")
    frame["verdict"] = verdicts(frame["beside_fedavg"].drop("fedavg"))
    return frame.sort_values("own", ascending=False)


def spent(searched: Path) -> pandas.Series:
    """Return spent/budget of each method's search as text."""
    search = pandas.read_csv(searched, index_col="method")
    return (search["spent"] / search["budget"]).map("{:.2f}".format)


def share_hurt(beside: Gains) -> str:
    """Return the share of clients that lose, in %, with half of its interval."""
    share = estimate_interval(
        [(of_partition < 0).astype(float) for of_partition in beside.of_clients]
    )
    return f"{100 * share.mean:.0f} ± {100 * share.half:.0f} %"


def mean(cells: Sequence[Placed], models: str = "") -> float:
    """Return the mean accuracy over clients and partitions of a column, in %."""
    return 100 * float(np.mean(of_runs(cells, models)))


def of_runs(cells: Sequence[Placed], models: str = "") -> list[float]:
    """Return the mean accuracy over clients in each run."""
    values = []
    for cell in cells:
        metric = f"{models}/mean" if models else cell.run.metric
        values.append(metric_values.read_value(cell.run, metric, "tail").value)
    return values


def gains(
    cells: Sequence[Placed], reference: Sequence[Placed], models: str = ""
) -> Gains | None:
    """Return the gains over a reference on the same partitions.

    Args:
        cells: Runs of a method.
        reference: Runs of the reference.
        models: Column of scored models; "" for each method's primary column.

    Returns:
        Gains; None if the method lacks these models.
    """
    metric = cells[0].run.metric
    reading = Reading(f"{models}/{metric}" if models else metric, "tail")
    return compute_gains(cells, reference, reading)


def verdicts(compared: pandas.Series) -> pandas.Series:
    """Return "better", "worse" or "" by Holm's correction for each method."""
    compared = compared.dropna()
    corrected = correct(compared.map(lambda one: one.interval.p))
    signs = compared.map(lambda one: "better" if one.interval.mean > 0 else "worse")
    return signs.where(corrected < LEVEL, "")


def page(setting: str, frame: pandas.DataFrame, deals: bool) -> str:
    """Return the page's table in Markdown.

    Args:
        setting: Name of the setting.
        frame: Numbers of all methods, as ``numbers`` returns them.
        deals: Whether all partitions distribute the same images.
    """
    titles = {
        name: title for name, title in TITLES.items() if name in {*frame, "method"}
    }
    shown = frame.copy()
    for name in ("by_tuning", "beside_local", "beside_fedavg", "beside_untuned_local"):
        shown[name] = frame[name].map(with_interval)
    for name in ("own", TUNED):
        shown[name] = frame[name].map("{:.2f}".format, na_action="ignore").fillna("–")
    shown["verdict"] = frame["verdict"].fillna("–")
    lines = ["| " + " | ".join(titles.values()) + " |", "|---" * len(titles) + "|"]
    for method, row in shown.iterrows():
        cells = [method, *(row[name] for name in list(titles)[1:])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    legend = LEGEND.format(data=DATA[deals])
    return f"# The tuned table: {setting}\n\n{legend}\n\n" + "\n".join(lines) + "\n"


def conclude(
    tuned: dict[str, list[Placed]],
    untuned: dict[str, list[Placed]],
    frame: pandas.DataFrame,
) -> str:
    """Return sentences on the effects of reference, tuning and moment of scoring."""
    by_tuning = verdicts(frame["by_tuning"])
    worse = ", ".join(by_tuning.index[by_tuning == "worse"])
    at_fixed_rate = gains(untuned["fedavg"], tuned["fedavg"], TUNED)
    own = over_partitions(tuned)
    with_untuned = correlation(own, over_partitions(untuned))
    with_trained = correlation(own, over_partitions(tuned, TUNED))
    beside = {
        reference: verdicts(frame[column].drop("local"))
        for reference, column in {
            "Local": "beside_local",
            "untuned Local": "beside_untuned_local",
        }.items()
    }
    return (
        f"After Holm's correction {' and '.join(map(counted, beside.items()))}.\n"
        f"After Holm's correction tuning gives {sum(by_tuning == 'better')} methods more "
        f"and {sum(by_tuning == 'worse')} less{worse and f' ({worse})'}.\n"
        "After five epochs FedAvg's models have with the file's rate "
        f"{mean(untuned['fedavg'], TUNED):.2f} %, {with_interval(at_fixed_rate)} beside "
        "those with the chosen one.\n"
        f"Spearman's correlation of own models, tuned, is {with_untuned} with the "
        f"untuned ones and {with_trained} with start models after five epochs.\n"
    )


def counted(beside: tuple[str, pandas.Series]) -> str:
    """Return a phrase on the numbers of methods above and below a reference."""
    reference, decided = beside
    better = decided.index[decided == "better"]
    return (
        f"{len(better)} methods have more ({', '.join(better)}) and "
        f"{sum(decided == 'worse')} less than {reference}"
    )


def over_partitions(
    runs: Mapping[str, Sequence[Placed]], models: str = ""
) -> pandas.DataFrame:
    """Return the mean accuracy over clients, a row per method and a column per seed."""
    return pandas.DataFrame(
        {
            method: pandas.Series(
                of_runs(cells, models), [cell.setting["seed"] for cell in cells]
            )
            for method, cells in runs.items()
        }
    ).T


def correlation(first: pandas.DataFrame, second: pandas.DataFrame) -> str:
    """Return Spearman's correlation of the methods' means over partitions as text.

    The text includes the 2.5 % and 97.5 % percentiles over partitions drawn with
    replacement. Methods and partitions that one frame lacks are left out.
    """
    seeds = first.columns.intersection(second.columns)
    generator = np.random.default_rng(0)
    drawn = [generator.choice(seeds, len(seeds)) for _ in range(RESAMPLES)]
    found = []
    for chosen in [seeds, *drawn]:
        # Rounding makes equal means ties regardless of the last bits of their sums.
        one, other = (
            frame[chosen].mean(axis="columns").round(9) for frame in (first, second)
        )
        found.append(one.corr(other, method="spearman"))
    low, high = np.quantile(found[1:], [0.025, 0.975])
    return f"{found[0]:.2f} ({low:.2f} to {high:.2f})"


def convergence(
    tuned: dict[str, list[Placed]],
    twice: dict[str, list[Placed]],
    frame: pandas.DataFrame,
) -> str:
    """Return sentences that compare runs of twice the rounds with the tuned runs."""
    lines = []
    for method, cells in twice.items():
        seed = cells[0].setting["seed"]
        once = [placed for placed in tuned[method] if placed.setting["seed"] == seed]
        lines.append({"once": mean(once), "twice": mean(cells)})
    both = pandas.DataFrame(lines, index=list(twice))
    gain = both["twice"] - both["once"]
    of_some = [f"{name} {gain[name]:+.1f}" for name in ("fedavg", "local")]
    ahead = [f"{name} {own:.1f}" for name, own in both["twice"].nlargest(5).items()]
    against_local = verdicts(frame["beside_local"].drop("local"))
    better = against_local.index[against_local == "better"]
    beside_local = both - both.loc["local"]
    of_better = [
        f"{name} {row['once']:+.1f}, {row['twice']:+.1f}"
        for name, row in beside_local.loc[better].iterrows()
    ]
    return (
        f"With twice the rounds {sum(gain > 0)} of {len(gain)} methods have more on the "
        f"first partition, in the median {gain.median():+.1f} points "
        f"({', '.join(of_some)}); Spearman's correlation of both orders is "
        f"{both['once'].corr(both['twice'], method='spearman'):.2f}.\n"
        f"The first there are then {', '.join(ahead)}. Points beside Local there, once and "
        "twice as long, of those that have more than it over all partitions: "
        f"{'; '.join(of_better) or 'none'}.\n"
    )


def with_interval(of_row: Gains | None) -> str:
    """Return a mean gain in points of accuracy with half of its interval, as text."""
    if of_row is None:
        return "–"
    of_mean = of_row.interval
    return f"{100 * of_mean.mean:+.2f} ± {100 * of_mean.half:.2f}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
