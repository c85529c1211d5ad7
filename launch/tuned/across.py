"""The settings of the tuned table side by side: ``python launch/tuned/across.py OUT
SETTING ...``.

Reads the final runs ``OUT/SETTING.tar.xz`` of each setting and writes
``OUT/settings.md``: what every method is worth beside training alone, once by its own
models and once by its start models after five epochs of each client's own training.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pandas
from write import (
    TUNED,
    correlation,
    gains,
    of_methods,
    over_partitions,
    verdicts,
    with_interval,
)

from hpcfl.report.arrangement import Placed
from hpcfl.report.comparison import Gains

REFERENCE = "local"
HEADING = """# The tuned table: its settings side by side

What clients gain beside training alone, in points of accuracy with intervals of 95 %
over twelve partitions; **bold** holds after Holm's correction within a setting. Methods
stand in the order of their mean rank over the settings. The range behind a correlation
holds the middle 95 % of its values over draws of the partitions; it is narrower than an
interval of 95 %. What follows: [README](README.md).
"""
OWN = "## Own models"
AFTER = """## Start models after five epochs

of plain training by each client at scoring, beside what the same five epochs make of
the models of training alone. Rates were chosen for the own models, not for this moment.
FedAvg-C's and FedProx-C's start models have been fine-tuned by their clients before
(`method.tune_epochs`), Per-FedAvg's by one step: theirs have the five epochs on top."""


def main(out: Path, settings: Sequence[str]) -> None:
    """Write the page of all settings."""
    runs = {name: of_methods(out / f"{name}.tar.xz") for name in settings}
    parts = [HEADING, part(OWN, runs, ""), part(AFTER, runs, TUNED)]
    (out / "settings.md").write_text("\n".join(parts), encoding="utf-8")


def beside_reference(
    runs: Mapping[str, Mapping[str, Sequence[Placed]]], models: str
) -> pandas.DataFrame:
    """The gains beside the reference: a line for each method, a column for each
    setting.
    """
    columns = {
        setting: pandas.Series(
            {
                method: gains(cells, of_setting[REFERENCE], models)
                for method, cells in of_setting.items()
                if method != REFERENCE
            }
        )
        for setting, of_setting in runs.items()
    }
    return pandas.DataFrame(columns)


def part(
    heading: str, runs: Mapping[str, Mapping[str, Sequence[Placed]]], models: str
) -> str:
    """A table in Markdown with what it says of the order below."""
    compared = beside_reference(runs, models)
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
    pairs = [
        f"{one} and {other} {correlation(accuracies[one], accuracies[other])}"
        for one, other in combinations(compared.columns, 2)
    ]
    lines.append(f"Spearman's correlation of the orders: {', '.join(pairs)}.")
    return f"{heading}\n\n" + "\n".join(lines) + "\n"


def mean_gain(of_row: Gains | None) -> float:
    """The mean gain as a fraction; NaN for models that a method does not have."""
    return float("nan") if of_row is None else of_row.interval.mean


def shown(of_row: Gains | None, verdict: object) -> str:
    """A gain with half of its interval, bold where it is decided."""
    text = with_interval(of_row)
    return f"**{text}**" if verdict in ("better", "worse") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
