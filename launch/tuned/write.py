"""Write the page of a setting of the tuned methods: ``python launch/tuned/write.py
SETTING OUT``.

The command reads these files and writes ``OUT/SETTING.md``:

* ``OUT/SETTING.tar.xz``: final runs of the tuned methods;
* ``OUT/SETTING-untuned.tar.xz``: final runs of the untuned methods;
* ``OUT/SETTING.csv``, optional: table of the search;
* ``OUT/SETTING-twice.tar.xz``, optional: tuned runs of the first seed with twice as many
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
    False: "Each partition draws its samples from the same pool, so partitions share samples.",
    True: "All partitions, including that of the search, distribute the same images. The\n"
    "intervals therefore cover the assignment of images to clients and the initial weights, and\n"
    "not the choice of images.",
}
LEGEND = """The table shows the mean accuracy over clients and twelve partitions in %, averaged over
the last tenth of the rounds. {data}
Gains are means over clients of differences in accuracy, in percentage points, with
intervals of 95 % (`hpcfl table --against`). All intervals are conditional on one search.

* **primary column**: models by which a method is judged: `pre` before a client's training in
  a round, `post` after it, `tuned` after the last round. `pre` of FedAvg-C and FedProx-C is
  after the fine-tuning at the start of a round (`method.tune_epochs`), `pre` of Per-FedAvg
  after one step.
* **accuracy**: mean accuracy of the primary column.
* **gain by tuning**: gain of the tuned method over the same method without tuning.
* **gain over Local**: gain over local training.
* **clients below Local**: share of clients with a lower accuracy than under local training.
* **accuracy after 5 epochs**: accuracy of the start models of all clients after five epochs of
  plain training at scoring, with the learning rate that was chosen for the primary column.
* **gain over FedAvg after 5 epochs**: gain of these models over FedAvg's.
* **verdict**: "better" or "worse" if this gain is significant after Holm's correction.
* **gain over untuned Local**: gain over local training with the launch file's learning rate.
* **spent/budget**: gradients of the search, divided by its budget.

The range behind a correlation holds the middle 95 % of its values over resampled partitions.
It is narrower than a confidence interval of 95 %, and it covers neither other methods nor
another search. [README](README.md) has the conclusions."""
TITLES = {
    "method": "method",
    "column": "primary column",
    "primary": "accuracy",
    "by_tuning": "gain by tuning ± 95 %",
    "over_local": "gain over Local ± 95 %",
    "below_local": "clients below Local ± 95 %",
    TUNED: "accuracy after 5 epochs",
    "over_fedavg": "gain over FedAvg after 5 epochs ± 95 %",
    "verdict": "verdict",
    "over_untuned_local": "gain over untuned Local ± 95 %",
    "spent": "spent/budget",
}


def main(setting: str, out: Path) -> None:
    """Write the page of a setting.

    Args:
        setting: Name of the setting.
        out: Folder of the runs and the page.
    """
    tuned = read_methods(out / f"{setting}.tar.xz")
    untuned = read_methods(out / f"{setting}-untuned.tar.xz")
    frame = compute_numbers(tuned, untuned)
    search = out / f"{setting}.csv"
    if search.is_file():
        frame["spent"] = read_spending(search)
    deals = deals_same_images(tuned["local"])
    text = f"{render_page(setting, frame, deals)}\n"
    text += render_conclusions(tuned, untuned, frame)
    twice = out / f"{setting}-twice.tar.xz"
    if twice.is_file():
        text += compare_convergence(tuned, read_methods(twice), frame)
    (out / f"{setting}.md").write_text(text, encoding="utf-8")


def deals_same_images(runs: Sequence[Placed]) -> bool:
    """Return whether all partitions of these runs distribute the same images."""
    data = runs[0].run.config["data"]
    return data.get("samples") is not None and not data.get("redraw")


def read_methods(packed: Path) -> dict[str, list[Placed]]:
    """Return the final runs of each method of an archive, ordered by seed."""
    arranged = arrange(loading.list_runs(packed), ROWS, COLUMNS)
    (column,) = arranged.columns
    return arranged.column(column)


def compute_numbers(
    tuned: dict[str, list[Placed]], untuned: dict[str, list[Placed]]
) -> pandas.DataFrame:
    """Return the numbers of the page in %, one row per method, sorted by accuracy."""
    lines = []
    for method, cells in tuned.items():
        local = compare_runs(cells, tuned["local"])
        assert local is not None, f"{method} and local share no partition"
        lines.append(
            {
                "method": method,
                "column": cells[0].run.score,
                "primary": compute_mean(cells),
                "by_tuning": compare_runs(cells, untuned.get(method, [])),
                "over_local": local,
                "below_local": compute_share_below(local),
                TUNED: compute_mean(cells, TUNED),
                "over_fedavg": compare_runs(cells, tuned["fedavg"], TUNED),
                "over_untuned_local": compare_runs(cells, untuned["local"]),
            }
        )
    frame = pandas.DataFrame(lines).set_index("method")
    frame["verdict"] = find_verdicts(frame["over_fedavg"].drop("fedavg"))
    return frame.sort_values("primary", ascending=False)


def read_spending(table: Path) -> pandas.Series:
    """Return the gradients of each method's search divided by its budget, as text."""
    search = pandas.read_csv(table, index_col="method")
    return (search["spent"] / search["budget"]).map("{:.2f}".format)


def compute_share_below(gains: Gains) -> str:
    """Return the share of clients with a negative gain, in %, with half its interval."""
    share = estimate_interval(
        [(of_partition < 0).astype(float) for of_partition in gains.of_clients]
    )
    return f"{100 * share.mean:.0f} ± {100 * share.half:.0f} %"


def compute_mean(cells: Sequence[Placed], models: str = "") -> float:
    """Return the mean accuracy of a column over clients and partitions, in %."""
    return 100 * float(np.mean(read_run_means(cells, models)))


def read_run_means(cells: Sequence[Placed], models: str = "") -> list[float]:
    """Return the mean accuracy over clients of each run."""
    values = []
    for cell in cells:
        metric = f"{models}/mean" if models else cell.run.metric
        values.append(metric_values.read_value(cell.run, metric, "tail").value)
    return values


def compare_runs(
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


def find_verdicts(compared: pandas.Series) -> pandas.Series:
    """Return "better", "worse" or "" for each method, after Holm's correction."""
    compared = compared.dropna()
    corrected = correct(compared.map(lambda one: one.interval.p))
    signs = compared.map(lambda one: "better" if one.interval.mean > 0 else "worse")
    return signs.where(corrected < LEVEL, "")


def render_page(setting: str, frame: pandas.DataFrame, deals: bool) -> str:
    """Return the page's table in Markdown.

    Args:
        setting: Name of the setting.
        frame: Numbers of all methods, from ``compute_numbers``.
        deals: Whether all partitions distribute the same images.
    """
    titles = {
        name: title for name, title in TITLES.items() if name in {*frame, "method"}
    }
    shown = frame.copy()
    for name in ("by_tuning", "over_local", "over_fedavg", "over_untuned_local"):
        shown[name] = frame[name].map(format_gain)
    for name in ("primary", TUNED):
        shown[name] = frame[name].map("{:.2f}".format, na_action="ignore").fillna("–")
    shown["verdict"] = frame["verdict"].fillna("–")
    lines = ["| " + " | ".join(titles.values()) + " |", "|---" * len(titles) + "|"]
    for method, row in shown.iterrows():
        cells = [method, *(row[name] for name in list(titles)[1:])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    legend = LEGEND.format(data=DATA[deals])
    return f"# Tuned methods: {setting}\n\n{legend}\n\n" + "\n".join(lines) + "\n"


def render_conclusions(
    tuned: dict[str, list[Placed]],
    untuned: dict[str, list[Placed]],
    frame: pandas.DataFrame,
) -> str:
    """Return sentences on the effects of reference, tuning and time of scoring."""
    by_tuning = find_verdicts(frame["by_tuning"])
    worse = ", ".join(by_tuning.index[by_tuning == "worse"])
    at_fixed_rate = compare_runs(untuned["fedavg"], tuned["fedavg"], TUNED)
    primary = tabulate_means(tuned)
    with_untuned = correlate(primary, tabulate_means(untuned))
    with_trained = correlate(primary, tabulate_means(tuned, TUNED))
    against = {
        reference: find_verdicts(frame[column].drop("local"))
        for reference, column in {
            "Local": "over_local",
            "untuned Local": "over_untuned_local",
        }.items()
    }
    return (
        f"{''.join(map(describe_verdicts, against.items()))}"
        f"* After Holm's correction tuning significantly improves {sum(by_tuning == 'better')} "
        f"methods and impairs {sum(by_tuning == 'worse')}{worse and f' ({worse})'}.\n"
        "* After five epochs FedAvg's models have an accuracy of "
        f"{compute_mean(untuned['fedavg'], TUNED):.2f} % with the launch file's learning rate, "
        f"{format_gain(at_fixed_rate)} points relative to the chosen learning rate.\n"
        "* Spearman's correlation of the tuned accuracy in the primary column is "
        f"{with_untuned} with the untuned accuracy and {with_trained} with the accuracy after "
        "five epochs.\n"
    )


def describe_verdicts(entry: tuple[str, pandas.Series]) -> str:
    """Return a sentence with the numbers of methods above and below a reference.

    Args:
        entry: Name of the reference, and the verdict of each method.
    """
    reference, verdicts = entry
    better = verdicts.index[verdicts == "better"]
    return (
        f"* After Holm's correction {len(better)} methods are better than {reference} "
        f"({', '.join(better)}), and {sum(verdicts == 'worse')} are worse.\n"
    )


def tabulate_means(
    runs: Mapping[str, Sequence[Placed]], models: str = ""
) -> pandas.DataFrame:
    """Return the mean accuracy over clients, one row per method, one column per seed."""
    return pandas.DataFrame(
        {
            method: pandas.Series(
                read_run_means(cells, models), [cell.setting["seed"] for cell in cells]
            )
            for method, cells in runs.items()
        }
    ).T


def correlate(first: pandas.DataFrame, second: pandas.DataFrame) -> str:
    """Return Spearman's correlation of the methods' means over partitions as text.

    The text includes the 2.5 % and 97.5 % percentiles over partitions drawn with
    replacement. Methods and partitions that are missing in one frame are left out.
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


def compare_convergence(
    tuned: dict[str, list[Placed]],
    twice: dict[str, list[Placed]],
    frame: pandas.DataFrame,
) -> str:
    """Return sentences that compare runs of twice the rounds with the tuned runs."""
    lines = []
    for method, cells in twice.items():
        seed = cells[0].setting["seed"]
        once = [placed for placed in tuned[method] if placed.setting["seed"] == seed]
        lines.append({"once": compute_mean(once), "twice": compute_mean(cells)})
    both = pandas.DataFrame(lines, index=list(twice))
    gain = both["twice"] - both["once"]
    examples = [f"{name} {gain[name]:+.1f}" for name in ("fedavg", "local")]
    best = [f"{name} {value:.1f}" for name, value in both["twice"].nlargest(5).items()]
    against_local = find_verdicts(frame["over_local"].drop("local"))
    better = against_local.index[against_local == "better"]
    over_local = both - both.loc["local"]
    changes = [
        f"{name} {row['once']:+.1f} and {row['twice']:+.1f}"
        for name, row in over_local.loc[better].iterrows()
    ]
    return (
        f"* With twice the rounds {sum(gain > 0)} of {len(gain)} methods are more accurate on "
        f"the first partition, with a median change of {gain.median():+.1f} points "
        f"({', '.join(examples)}). Spearman's correlation with the accuracy after the "
        f"original number of rounds is {both['once'].corr(both['twice'], method='spearman'):.2f}.\n"
        f"* The best five methods after twice the rounds are {', '.join(best)}.\n"
        "* Gains over Local on the first partition after the original number of rounds and "
        "after twice the rounds, of the methods that are better over all partitions: "
        f"{'; '.join(changes) or 'none'}.\n"
    )


def format_gain(gains: Gains | None) -> str:
    """Return a mean gain in percentage points with half of its interval, as text."""
    if gains is None:
        return "–"
    interval = gains.interval
    return f"{100 * interval.mean:+.2f} ± {100 * interval.half:.2f}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
