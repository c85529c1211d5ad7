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
from write import TUNED, correlation, gains, of_methods, verdicts, with_interval

from hpcfl.report.arrangement import Placed
from hpcfl.report.comparison import Gains

REFERENCE = "local"
HEADING = """# The tuned table: its settings side by side

What clients gain beside training alone, in points of accuracy with intervals of 95 %
over twelve partitions; **bold** holds after Holm's correction within a setting. Methods
stand in the order of their mean rank over the settings; the intervals of correlations are
percentiles over 999 draws of the partitions. FedAvg-C's and FedProx-C's own models have
been tuned by their clients before the round begins, and are their start models. What follows:
[README](README.md).
"""
OWN = "## Own models"
AFTER = """## Start models after five epochs

of plain training by each client at scoring, beside what the same five epochs make of
the models of training alone. Rates were chosen for the own models, not for this moment."""


def main(out: Path, settings: Sequence[str]) -> None:
    """Write the page of all settings."""
    runs = {name: of_methods(out / f"{name}.tar.xz") for name in settings}
    own = beside_reference(runs, "")
    after = beside_reference(runs, TUNED)
    parts = [HEADING, part(OWN, own), part(AFTER, after)]
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


def part(heading: str, compared: pandas.DataFrame) -> str:
    """A table in Markdown with what it says of the order below."""
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
        f"{one} and {other} {order_of_both(compared[one], compared[other])}"
        for one, other in combinations(compared.columns, 2)
    ]
    lines.append(f"Spearman's correlation of the orders: {', '.join(pairs)}.")
    return f"{heading}\n\n" + "\n".join(lines) + "\n"


def order_of_both(one: pandas.Series, other: pandas.Series) -> str:
    """Spearman's correlation of two settings' mean gains with its interval."""
    return correlation(over_partitions(one), over_partitions(other))


def over_partitions(of_setting: pandas.Series) -> pandas.DataFrame:
    """The mean gains: a line for each method, a column for each partition."""
    means = {
        method: [of_clients.mean() for of_clients in of_row.of_clients]
        for method, of_row in of_setting.dropna().items()
    }
    return pandas.DataFrame(means).T


def mean_gain(of_row: Gains | None) -> float:
    """The mean gain as a fraction; NaN for models that a method does not have."""
    return float("nan") if of_row is None else of_row.interval.mean


def shown(of_row: Gains | None, verdict: object) -> str:
    """A gain with half of its interval, bold where it is decided."""
    text = with_interval(of_row)
    return f"**{text}**" if verdict in ("better", "worse") else text


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
