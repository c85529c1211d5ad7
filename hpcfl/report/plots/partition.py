"""How many training samples of each class each client has, as areas of circles, whose
colours are the groups of clients that ``[[shift]]`` makes.
"""

from collections.abc import Mapping
from math import pi
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange, called
from hpcfl.report.plots.base import LINE, NARROWEST, Sheet, literal, whole_numbers
from hpcfl.report.style import OKABE_ITO, PLAIN
from hpcfl.report.summary import Run
from hpcfl.storage.results import GROUP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST = 1_000  # clients of a panel; of more no circle could be seen
HIGHEST = 5.0  # inches of all classes
NAMED = 8  # groups with a colour of their own, which the legend names
LETTERS = 48  # of a group's name in the legend
LETTER = 1 / 15  # inches that a letter of the legend takes, with its part of the circle


def plugin(runs: list[Run], sheet: Sheet) -> "Figure":
    """A panel for each data set and scheme; of several partitions the first, with its
    name.
    """
    arranged = arrange(runs, unfinished=True)
    panels: dict[str, np.ndarray] = {}
    groups: dict[str, list[str]] = {}
    for column in arranged.columns:
        known = [
            placed
            for cell in arranged.column(column).values()
            for placed in cell
            if "train_counts" in placed.run.results.static
        ]
        if not known:
            continue
        tables = [placed.run.results.static["train_counts"] for placed in known]
        title = (
            column
            if len(arranged.columns) > 1
            else (
                f"training samples by client and class ({int(tables[0].sum()):,} in total)"
            )
        )
        several = len({table.tobytes() for table in tables})
        name = called([placed.setting for placed in known])[0]
        if several > 1:
            title = f"{title}, {name}, one of {several} partitions"
        if len(tables[0]) > MOST:
            title = f"{title}; the first {MOST:,} of {len(tables[0]):,} clients"
        panels[title] = tables[0][:MOST]
        groups[title] = groups_of(known[0].run)[:MOST]
    if not panels:
        raise UserError(f"{runs[0].folder}: its partition was not recorded")
    return bubbles(sheet, panels, groups)


def groups_of(run: Run) -> list[str]:
    """What the group of each client is called, by its number; empty without groups."""
    group = run.results.static.get(GROUP)
    names = run.results.header.get("groups", [])
    if group is None or group.max(initial=-1) >= len(names):
        return []
    return [names[number] for number in group.tolist()]


def bubbles(
    sheet: Sheet,
    panels: Mapping[str, np.ndarray],
    groups: Mapping[str, list[str]] | None = None,
) -> "Figure":
    """Counts ``[clients, classes]`` by title; the circles of all panels have the same
    scale.

    groups: by title what the group of each client is called, or nothing.
    """
    groups = groups or {}
    every_name = dict.fromkeys(name for names in groups.values() for name in names)
    colours = {
        name: OKABE_ITO[(place + 1) % len(OKABE_ITO)]
        for place, name in enumerate(every_name)
    }
    widest = max(counts.shape[0] for counts in panels.values())
    most = max(1, min(int(sheet.width / NARROWEST), int(sheet.width / (0.09 * widest))))
    across = min(len(panels), most)
    room = sheet.width / across - 0.55  # inches in which the circles lie
    cell = min(0.3, room / widest)
    classes = max(counts.shape[1] for counts in panels.values())
    tall = max(0.8, classes * min(1.3 * cell, 0.2, HIGHEST / classes))
    figure, places = sheet.panels(len(panels), most, height=0.75 + tall)
    largest = max(int(counts.max()) for counts in panels.values())
    diameter = 72 * min(
        cell, 1.3 * tall / (classes + 1)
    )  # points; large circles of one client may touch
    scale = pi / 4 * diameter**2 / largest  # points² a sample
    for place, (title, counts) in zip(places, panels.items(), strict=True):
        names = groups.get(title) or []
        colour_of = [colours[name] for name in names[: len(counts)]]
        _draw(place, counts, scale, colour_of or [PLAIN] * len(counts))
        place.set_title(sheet.title(title))
    sizes = legend_sizes(largest)
    handles = [
        places[0].scatter([], [], s=scale * size, color=PLAIN, linewidth=0)
        for size in sizes
    ]
    labels = [f"{size:,} sample{'s' if size > 1 else ''}" for size in sizes]
    for name in list(every_name)[:NAMED]:
        dot = places[0].scatter([], [], s=20, color=colours[name], linewidth=0)
        handles.append(dot)
        labels.append(literal(name, LETTERS))
    if len(every_name) > NAMED:
        labels[-1] += f" and {len(every_name) - NAMED} more groups"
    across = len(sizes)
    if every_name:
        longest = max(len(label) for label in labels)
        across = max(1, int(sheet.width / (longest * LETTER)))
    figure.set_figheight(figure.get_figheight() + -(-len(labels) // across) * LINE)
    figure.legend(
        handles,
        labels,
        ncols=across,
        loc="outside lower center",
        borderaxespad=0.1,
        handletextpad=0.4,
    )
    return figure


def _draw(place: "Axes", counts: np.ndarray, scale: float, colours: list[str]) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    areas = np.maximum(scale * counts[client, label], 0.5)
    chosen = [colours[number] for number in client.tolist()]
    place.scatter(client, label, s=areas, color=chosen, alpha=0.8, linewidth=0)
    place.set(
        xlabel="client",
        ylabel="class",
        xlim=(-0.8, clients - 0.2),
        ylim=(-0.8, classes - 0.2),
    )
    for axis in (place.xaxis, place.yaxis):
        whole_numbers(axis, 12)


def legend_sizes(most: int) -> list[int]:
    """Up to three sizes at most ``most``, ascending: every other one of 1, 2, 5, 10,
    20, …
    """
    sizes = [step * 10**power for power in range(len(str(most))) for step in (1, 2, 5)]
    return [size for size in sizes if size <= most][::-2][:3][::-1]
