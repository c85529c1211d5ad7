"""Compare the settings of the tuned table: ``python launch/tuned/across.py OUT SETTING
...``.

The command reads the final runs ``OUT/SETTING.tar.xz`` of each setting and writes
``OUT/settings.md`` with the gains of every method over local training. The page has three
tables: own models; start models after five epochs of local training; and own models
compared with untuned local training (``OUT/SETTING-untuned.tar.xz``).
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
    correlation,
    deals_same_images,
    gains,
    of_methods,
    over_partitions,
    verdicts,
    with_interval,
)

from hpcfl.report.arrangement import Placed, arrange
from hpcfl.report.comparison import Gains
from hpcfl.storage.packed_runs import unpacked
from hpcfl.trained import loading

REFERENCE = "local"
HEADING = """# The tuned table: its settings side by side

Gains of clients over training alone, in points of accuracy, with intervals of 95 % over
twelve partitions. {same}
**Bold** gains hold after Holm's correction within a setting. Methods are in the order of
their mean rank over the settings. The range behind a correlation holds the middle 95 %
of its values over draws of the partitions; it is narrower than an interval of 95 %.
[README](README.md) has the conclusions.
"""
OWN = "## Own models"
AFTER = """## Start models after five epochs

of plain training by each client at scoring, beside what the same five epochs make of
the models of training alone. Rates were chosen for the own models, not for this moment.
FedAvg-C's and FedProx-C's start models have been fine-tuned by their clients before
(`method.tune_epochs`), Per-FedAvg's by one step: theirs have the five epochs on top."""
UNTUNED = """## Own models beside untuned Local

The reference is training alone at the file's learning rate. One search chose the tuned
Local's rate, and its luck enters all gains of a setting."""


def main(out: Path, settings: Sequence[str]) -> None:
    """Write the page of all settings.

    Args:
        out: Folder of the runs and the page.
        settings: Names of the settings.
    """
    runs = {name: of_methods(out / f"{name}.tar.xz") for name in settings}
    tuned = {name: of_methods[REFERENCE] for name, of_methods in runs.items()}
    heading = HEADING.format(same=same_images(tuned))
    parts = [heading, part(OWN, runs, tuned, ""), part(AFTER, runs, tuned, TUNED)]
    packs = {name: out / f"{name}-untuned.tar.xz" for name in settings}
    if all(pack.is_file() for pack in packs.values()):
        untuned = {name: untuned_reference(pack) for name, pack in packs.items()}
        parts.append(part(UNTUNED, runs, untuned, ""))
    (out / "settings.md").write_text("\n".join(parts), encoding="utf-8")


def same_images(references: Mapping[str, Sequence[Placed]]) -> str:
    """Return a sentence on the settings whose partitions all have the same images."""
    names = [
        f"*{setting}*"
        for setting, runs in references.items()
        if deals_same_images(runs)
    ]
    if not names:
        return "Each partition draws images of its own."
    return f"In {' and '.join(names)} all partitions have the same images."


def untuned_reference(packed: Path) -> Sequence[Placed]:
    """Return the final runs of the untuned reference, loading no other runs."""
    with unpacked(packed) as folder:
        runs = [
            loading.load_run(place) for place in sorted(folder.glob(f"{REFERENCE},*"))
        ]
        arranged = arrange(runs, ROWS, COLUMNS)
    (column,) = arranged.columns
    return arranged.column(column)[REFERENCE]


def beside_reference(
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
        Frame with a row for each method and a column for each setting.
    """
    columns = {
        setting: pandas.Series(
            {
                method: gains(cells, references[setting], models)
                for method, cells in of_setting.items()
                if method != REFERENCE
            }
        )
        for setting, of_setting in runs.items()
    }
    return pandas.DataFrame(columns)


def part(
    heading: str,
    runs: Mapping[str, Mapping[str, Sequence[Placed]]],
    references: Mapping[str, Sequence[Placed]],
    models: str,
) -> str:
    """Return a section: table in Markdown, then counts, signs and correlations.

    Args:
        heading: Heading and introduction.
        runs: Runs by setting and method.
        references: Runs of the reference by setting.
        models: Column of scored models; "" for each method's primary column.
    """
    compared = beside_reference(runs, references, models)
    accuracies = {
        setting: over_partitions(of_setting, models).drop(REFERENCE)
        for setting, of_setting in runs.items()
    }
    means = compared.map(mean_gain)
    ranks = means.rank(ascending=False)
    order = ranks.mean(axis="columns").sort_values().index
    decided = compared.apply(verdicts)
    lines = [
        f"| method | {' | '.join(compared.columns)} | mean rank |",
        "|---" * (len(compared.columns) + 2) + "|",
    ]
    for method in order:
        cells = [
            shown(compared.at[method, setting], decided.at[method, setting])
            for setting in compared.columns
        ]
        rank = f"{ranks.loc[method].mean():.1f}"
        lines.append(f"| {' | '.join([method, *cells, rank])} |")
    counts = [
        f"{setting}: {sum(verdict == 'better')} more, {sum(verdict == 'worse')} less"
        for setting, verdict in decided.items()
    ]
    lines.append(f"\nThan training alone, of {len(order)}: {'; '.join(counts)}.")
    lines.append(signs(compared, decided))
    pairs = [
        f"{one} and {other} {correlation(accuracies[one], accuracies[other])}"
        for one, other in combinations(compared.columns, 2)
    ]
    lines.append(f"Spearman's correlation of the orders: {', '.join(pairs)}.")
    return f"{heading}\n\n" + "\n".join(lines) + "\n"


def signs(compared: pandas.DataFrame, decided: pandas.DataFrame) -> str:
    """Return a sentence that lists the methods with positive gains in all settings.

    It lists methods with positive estimates, with intervals above 0, and with significant
    gains.
    """
    lowest = compared.map(lower_end).min(axis="columns")
    positive = compared.map(mean_gain).min(axis="columns") > 0
    better = (decided == "better").all(axis="columns")
    named = [
        ", ".join(chosen.index[chosen]) or "none"
        for chosen in (positive, lowest > 0, better)
    ]
    return (
        f"Estimates above 0 in all settings: {named[0]}; intervals of 95 %, not corrected, "
        f"above 0 in all: {named[1]}; more in all after Holm's correction: {named[2]}."
    )


def lower_end(of_row: Gains | None) -> float:
    """Return the lower end of an interval; NaN if the method lacks these models."""
    if of_row is None:
        return float("nan")
    return of_row.interval.mean - of_row.interval.half


def mean_gain(of_row: Gains | None) -> float:
    """Return the mean gain as a fraction; NaN if the method lacks these models."""
    return float("nan") if of_row is None else of_row.interval.mean


def shown(of_row: Gains | None, verdict: object) -> str:
    """Return a gain with half of its interval as text, bold if it is significant."""
    text = with_interval(of_row)
    return f"**{text}**" if verdict in ("better", "worse") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
