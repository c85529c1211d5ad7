"""Draw the scores of clients as shades, one row per method and one column per client.

Repetitions with the same partition are averaged. Other partitions have different
clients, so each seed has separate columns after a gap.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas

from hpcfl.report.metric_values import Reading, find_counts
from hpcfl.report.plots import clients
from hpcfl.report.plots.clients import Rows
from hpcfl.report.sheet import Sheet
from hpcfl.report.text import shorten
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TICKS = 20  # maximum number of client ids on the axis
GAP = -1  # id of the empty column between two partitions


def draw(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw the scores with the best mean at the top, and hatch clients without a score.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        metric: Name of a per-client score; default the primary metric.
        at: Rounds at which the score is read: "best", "last" or "tail".
        group: Keys that define a row; default the method.
    """
    scores = clients.read_rows(runs, sheet, Reading(metric, at), group)
    figure, places = clients.make_panels(sheet, scores, shares_x=False)
    low, high = scores.numbers["number"].agg(["min", "max"])
    for place, panel in zip(places, scores.panels, strict=True):
        table = tabulate_scores(scores, panel)
        place.patch.set(hatch="////", edgecolor="#e4e4e4")
        image = place.imshow(table, aspect="auto", vmin=low, vmax=high)
        place.grid(False)
        place.set(xlabel="client", ylim=(len(table) - 0.5, -0.5))
        _name_columns(place, list(table.columns))
    figure.colorbar(image, ax=places, pad=0.01, aspect=30)
    figure.suptitle(shorten(scores.label))
    sheet.notes.append(f"rows by their mean; a column is a client, {scores.moment}")
    return figure


def tabulate_scores(scores: Rows, panel: str) -> pandas.DataFrame:
    """Return the scores of a panel with one line per row and one column per client.

    Each partition has separate columns, with a column of NaN between partitions.
    """
    numbers = scores.numbers[scores.numbers["panel"] == panel]
    counted = {
        seed: find_counts(of_seed[-1], "test")
        for seed, of_seed in scores.repetitions.items()
    }
    first = next(iter(counted.values()))
    if all(np.array_equal(counts, first) for counts in counted.values()):
        numbers = numbers.assign(seed="")
        counted = {"": first}
    table = numbers.pivot_table(
        index="row", columns=["seed", "client"], values="number", sort=False
    )
    columns = []
    for seed, counts in counted.items():
        if columns:
            columns.append((seed, GAP))
        columns += [(seed, client) for client in range(len(counts))]
    return table.reindex(columns=pandas.MultiIndex.from_tuples(columns))


def _name_columns(place: "Axes", columns: list[tuple[str, int]]) -> None:
    """Write some client ids below the panel and the seeds of partitions above it."""
    step = 1 + len(columns) // TICKS
    numbered = [n for n, (_, one) in enumerate(columns) if one >= 0 and one % step == 0]
    place.set_xticks(numbered, [str(columns[n][1]) for n in numbered])
    gaps = [n for n, (_, client) in enumerate(columns) if client == GAP]
    for gap in gaps:
        place.axvspan(gap - 0.5, gap + 0.5, facecolor="white", edgecolor="black")
    if gaps:
        starts = [0, *(gap + 1 for gap in gaps)]
        above = place.secondary_xaxis("top")
        above.set_xticks(starts, [columns[n][0] for n in starts], ha="left")
        above.tick_params(length=0)
        above.spines[:].set_visible(False)
