"""Compare the settings of the tuned methods: ``python launch/tuned/across.py OUT SETTING
...``.

The command reads the final runs ``OUT/SETTING.tar.xz`` of each setting and writes
``OUT/settings.md`` with the gains of every method over local training. The page has three
tables: accuracy in the primary column; start models after five epochs of local training;
and the primary column against untuned local training (``OUT/SETTING-untuned.tar.xz``).
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pandas
from write import (
    COLUMNS,
    ROWS,
    TUNED,
    compare_runs,
    correlate,
    deals_same_images,
    find_verdicts,
    format_gain,
    read_methods,
    tabulate_means,
)

from hpcfl.report.arrangement import Placed, arrange
from hpcfl.report.comparison import Gains
from hpcfl.storage.packed_runs import unpack
from hpcfl.trained import loading

REFERENCE = "local"
HEADING = """# Tuned methods: comparison of the settings

Each table shows the gain over local training in percentage points of accuracy, with intervals of
95 % over twelve partitions. {images}
**Bold** gains are significant after Holm's correction within a setting. Methods are sorted by their
mean rank over the settings. The range behind a correlation holds the middle 95 % of its values over
resampled partitions; it is narrower than a confidence interval of 95 %. [README](README.md) has the
conclusions.
"""
PRIMARY = "## Gain over Local in the primary column"
AFTER = """## Start models after five epochs

All clients train the start models for five epochs of plain training at scoring. The reference is the
model of local training after the same five epochs. The learning rates were chosen for the primary
column and not for this measure. FedAvg-C's and FedProx-C's start models were already fine-tuned by
their clients (`method.tune_epochs`), and Per-FedAvg's were trained by one step; the five epochs
follow that training."""
UNTUNED = """## Gain over untuned Local in the primary column

The reference is local training with the launch file's learning rate. One search chose the learning rate
of the tuned Local, and the error of this search affects all gains of a setting."""


def main(out: Path, settings: Sequence[str]) -> None:
    """Write the page of all settings.

    Args:
        out: Folder of the runs and the page.
        settings: Names of the settings.
    """
    runs = {name: read_methods(out / f"{name}.tar.xz") for name in settings}
    tuned = {name: methods[REFERENCE] for name, methods in runs.items()}
    sections = [
        HEADING.format(images=describe_images(tuned)),
        render_section(PRIMARY, runs, tuned, ""),
        render_section(AFTER, runs, tuned, TUNED),
    ]
    packs = {name: out / f"{name}-untuned.tar.xz" for name in settings}
    if all(pack.is_file() for pack in packs.values()):
        untuned = {name: read_untuned(pack) for name, pack in packs.items()}
        sections.append(render_section(UNTUNED, runs, untuned, ""))
    (out / "settings.md").write_text("\n".join(sections), encoding="utf-8")


def describe_images(references: Mapping[str, Sequence[Placed]]) -> str:
    """Return a sentence that names the settings whose partitions share all images."""
    names = [
        f"*{setting}*"
        for setting, runs in references.items()
        if deals_same_images(runs)
    ]
    if not names:
        return "Each partition draws different images."
    return f"In {' and '.join(names)} all partitions have the same images."


def read_untuned(packed: Path) -> Sequence[Placed]:
    """Return the final runs of the untuned reference without loading other runs."""
    with unpack(packed) as folder:
        runs = [
            loading.load_run(place) for place in sorted(folder.glob(f"{REFERENCE},*"))
        ]
        arranged = arrange(runs, ROWS, COLUMNS)
    (column,) = arranged.columns
    return arranged.column(column)[REFERENCE]


def compare_settings(
    runs: Mapping[str, Mapping[str, Sequence[Placed]]],
    references: Mapping[str, Sequence[Placed]],
    models: str,
) -> pandas.DataFrame:
    """Return the gains over each setting's reference.

    Args:
        runs: Runs by setting and method.
        references: Runs of the reference by setting.
        models: Column of scored models; "" for each method's primary column.

    Returns:
        Frame with one row per method and one column per setting.
    """
    columns = {
        setting: pandas.Series(
            {
                method: compare_runs(cells, references[setting], models)
                for method, cells in methods.items()
                if method != REFERENCE
            }
        )
        for setting, methods in runs.items()
    }
    return pandas.DataFrame(columns)


def render_section(
    heading: str,
    runs: Mapping[str, Mapping[str, Sequence[Placed]]],
    references: Mapping[str, Sequence[Placed]],
    models: str,
) -> str:
    """Return a section in Markdown: table, numbers of methods, and correlations.

    Args:
        heading: Heading and introduction.
        runs: Runs by setting and method.
        references: Runs of the reference by setting.
        models: Column of scored models; "" for each method's primary column.
    """
    compared = compare_settings(runs, references, models)
    accuracies = {
        setting: tabulate_means(methods, models).drop(REFERENCE)
        for setting, methods in runs.items()
    }
    means = compared.map(compute_mean_gain)
    ranks = means.rank(ascending=False)
    order = ranks.mean(axis="columns").sort_values().index
    verdicts = compared.apply(find_verdicts)
    lines = [
        f"| method | {' | '.join(compared.columns)} | mean rank |",
        "|---" * (len(compared.columns) + 2) + "|",
    ]
    for method in order:
        cells = [
            format_cell(compared.at[method, setting], verdicts.at[method, setting])
            for setting in compared.columns
        ]
        rank = f"{ranks.loc[method].mean():.1f}"
        lines.append(f"| {' | '.join([method, *cells, rank])} |")
    counts = [
        f"{setting} {sum(verdict == 'better')} better, {sum(verdict == 'worse')} worse"
        for setting, verdict in verdicts.items()
    ]
    lines.append(
        f"\n* Significant differences from the reference, of {len(order)} methods: "
        f"{'; '.join(counts)}."
    )
    lines.append(list_positive(compared, verdicts))
    pairs = [
        f"{one} and {other} {correlate(accuracies[one], accuracies[other])}"
        for one, other in combinations(compared.columns, 2)
    ]
    lines.append(
        f"* Spearman's correlation of the accuracies between settings: {', '.join(pairs)}."
    )
    return f"{heading}\n\n" + "\n".join(lines) + "\n"


def list_positive(compared: pandas.DataFrame, verdicts: pandas.DataFrame) -> str:
    """Return a sentence that lists the methods with positive gains in all settings.

    It lists methods with positive estimates, with intervals above 0, and with significant
    gains.
    """
    lowest = compared.map(compute_lower_end).min(axis="columns")
    positive = compared.map(compute_mean_gain).min(axis="columns") > 0
    better = (verdicts == "better").all(axis="columns")
    names = [
        ", ".join(chosen.index[chosen]) or "none"
        for chosen in (positive, lowest > 0, better)
    ]
    return (
        f"* Methods with gains above 0 in all settings: by the estimate {names[0]}; by the "
        f"interval of 95 % without correction {names[1]}; after Holm's correction {names[2]}."
    )


def compute_lower_end(gains: Gains | None) -> float:
    """Return the lower end of an interval, or NaN if the method lacks these models."""
    if gains is None:
        return float("nan")
    return gains.interval.mean - gains.interval.half


def compute_mean_gain(gains: Gains | None) -> float:
    """Return the mean gain as a fraction, or NaN if the method lacks these models."""
    return float("nan") if gains is None else gains.interval.mean


def format_cell(gains: Gains | None, verdict: object) -> str:
    """Return a gain with half of its interval as text, bold if it is significant."""
    text = format_gain(gains)
    return f"**{text}**" if verdict in ("better", "worse") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
