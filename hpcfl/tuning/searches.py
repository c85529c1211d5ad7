"""Outcome of repeated searches: mean test scores with components of variance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.table import Table

from hpcfl.files import atomic
from hpcfl.report import variance
from hpcfl.report.text import literal, make_console
from hpcfl.scores.metric_names import Measure
from hpcfl.storage.tune_folder import SPENT
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import Cell, TuningPlan
from hpcfl.tuning.search_results import SearchResults

TABLE = "searches.csv"
TITLE = (
    "mean test score ± half of its 95 % interval over searches and partitions, and the "
    "standard deviations of search, partition and training seed"
)
COMPONENTS = "search", "partition", "training"


def write_searches(
    plan: TuningPlan, folder: Path, tested: Mapping[str, float], measure: Measure
) -> None:
    """Write and print a row for each method.

    Args:
        plan: Plan of the tuning.
        folder: Folder of the tuning.
        tested: Test scores of final runs by name.
        measure: Measure of the primary metric.
    """
    rows = [describe(plan, folder, method, tested) for method in plan.section.methods]
    frame = pandas.DataFrame(rows)
    atomic.write(folder / TABLE, frame.to_csv(index=False).encode())
    columns = ("method", "test ± 95 %", *COMPONENTS, "searches", SPENT)
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        mean, half, *deviations = (
            measure.format(row[name]) for name in ("mean", "half", *COMPONENTS)
        )
        share = f"{row[SPENT]:.2f}"
        counts = str(row["searches"]), share
        table.add_row(literal(row["method"]), f"{mean} ± {half}", *deviations, *counts)
    console = make_console(160)
    console.print(literal(TITLE))
    console.print(table)


def describe(
    plan: TuningPlan, folder: Path, method: str, tested: Mapping[str, float]
) -> dict[str, Any]:
    """Return the row of a method; values are NaN if too few runs have a score."""
    seeds = plan.section.final_seeds
    scores = np.full((len(plan.searches), len(seeds)), np.nan)
    spent = []
    for row, search in zip(scores, plan.searches, strict=True):
        tuned = search.make_tuned(method)
        row[:] = [tested.get(Cell(tuned, seed).name, np.nan) for seed in seeds]
        gradients, _ = SearchResults(search, folder).sum_gradients(method)
        spent.append(gradients)
    found = variance.estimate(scores)
    return {
        "method": method,
        "searches": int(np.isfinite(scores).any(axis=1).sum()),
        "partitions": int(np.isfinite(scores).any(axis=0).sum()),
        "mean": found.mean,
        "half": found.compute_half_width(),
        **{name: getattr(found, name) for name in COMPONENTS},
        SPENT: sum(spent) / (plans.count_search_budget(plan) * len(spent)),
    }
