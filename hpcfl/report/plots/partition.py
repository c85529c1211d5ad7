"""Training samples of each client and class as areas of circles.

Colours show the groups of clients that ``[[shift]]`` makes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange, name_repetitions
from hpcfl.report.sheet import NARROWEST, OKABE_ITO, PLAIN, Sheet, set_whole_ticks
from hpcfl.storage.results import GROUP
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 1_000  # maximum number of clients in a panel; more circles would be too small
HIGHEST = 5.0  # maximum height of all classes in inches
NAMED = 7  # maximum number of groups in the legend
SIZES = (1, 1 / 4, 1 / 16)  # circles in the legend, as fractions of the largest count


def plugin(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw a panel for each data set and scheme.

    If the runs of a panel have several partitions, the first one is drawn and named.
    """
    arranged = arrange(runs, unfinished=True)
    panels: dict[str, np.ndarray] = {}
    groups: dict[str, list[str]] = {}
    for column in arranged.columns:
        known = [
            placed
            for placed in arranged.placed
            if placed.column == column and "train_counts" in placed.run.results.static
        ]
        if not known:
            continue
        tables = [placed.run.results.static["train_counts"] for placed in known]
        counts, *_ = tables
        title = f"training samples by client and class ({counts.sum():,} in total)"
        if len(arranged.columns) > 1:
            title = column
        several = len({table.tobytes() for table in tables})
        if several > 1:
            name, *_ = name_repetitions([placed.setting for placed in known])
            title += f", {name}, one of {several} partitions"
        if len(counts) > MOST:
            title += f"; the first {MOST:,} of {len(counts):,} clients"
        panels[title] = counts[:MOST]
        groups[title] = list_groups(known[0].run)[:MOST]
    if not panels:
        raise UserError(f"{runs[0].folder}: its partition was not recorded")
    return draw(sheet, panels, groups)


def list_groups(run: Run) -> list[str]:
    """Return the name of each client's group by client id; empty without groups."""
    group = run.results.static.get(GROUP)
    names = run.results.header.get("groups", [])
    if group is None or group.max(initial=-1) >= len(names):
        return []
    return [names[number] for number in group.tolist()]


def draw(
    sheet: Sheet,
    panels: Mapping[str, np.ndarray],
    groups: Mapping[str, list[str]],
) -> "Figure":
    """Draw circles for the samples of clients and classes, on one scale for all panels.

    Args:
        sheet: Sheet to draw on.
        panels: Number of samples ``[clients, classes]`` by title of the panel.
        groups: Name of each client's group by title; empty without groups.
    """
    names = list(dict.fromkeys(name for title in panels for name in groups[title]))
    others = len(OKABE_ITO) - 1  # number of colours without black
    colours = {name: OKABE_ITO[1 + n % others] for n, name in enumerate(names)}
    clients, classes = np.max([counts.shape for counts in panels.values()], axis=0)
    largest = max(1, max(int(counts.max()) for counts in panels.values()))
    most = max(1, int(sheet.width / max(NARROWEST, 0.09 * clients)))
    cell = min(0.3, (sheet.width / min(len(panels), most) - 0.55) / clients)
    height = min(HIGHEST, max(0.8, classes * min(1.3 * cell, 0.2)))
    # In points; large circles of one client may touch.
    diameter = 72 * min(cell, 1.3 * height / (classes + 1))
    scale = diameter**2 / largest
    figure, places = sheet.panels(len(panels), most, height=0.75 + height)
    for place, (title, counts) in zip(places, panels.items(), strict=True):
        client, number = np.nonzero(counts)
        areas = np.maximum(scale * counts[client, number], 0.5)
        own = np.array([colours[name] for name in groups[title]] or [PLAIN])
        chosen = own[client % len(own)]
        place.scatter(client, number, s=areas, color=chosen, alpha=0.8, linewidth=0)
        place.set(
            title=sheet.title(title),
            xlabel="client",
            ylabel="class",
            xlim=(-0.8, len(counts) - 0.2),
            ylim=(-0.8, counts.shape[1] - 0.2),
        )
        set_whole_ticks(place.xaxis, 12)
        set_whole_ticks(place.yaxis, 12)
    handles = {}
    for size in sorted({max(1, int(largest * part)) for part in SIZES}):
        label = f"{size:,} sample{'s' if size > 1 else ''}"
        handles[label] = places[0].scatter([], [], s=scale * size, color=PLAIN)
    for name in names[:NAMED]:
        handles[name] = places[0].scatter([], [], s=20, color=colours[name])
    if len(names) > NAMED:
        label = f"and {len(names) - NAMED} more groups"
        handles[label] = places[0].scatter([], [], s=0)
    sheet.legend(figure, list(handles.values()), list(handles))
    return figure
