"""How many training samples of each class each client has, as areas of circles."""

from math import pi
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange, called
from hpcfl.report.plots.base import LINE, NARROWEST, Sheet, whole_numbers
from hpcfl.report.style import PLAIN
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


HIGHEST = 5.0  # inches of all classes


def plugin(runs: list[Run], sheet: Sheet) -> "Figure":
    """A panel for each data set and scheme; of several partitions the first, with its
    name.
    """
    arranged = arrange(runs, unfinished=True)
    panels: dict[str, np.ndarray] = {}
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
        panels[
            f"{title}, {name}, one of {several} partitions" if several > 1 else title
        ] = tables[0]
    if not panels:
        raise UserError(f"{runs[0].folder}: its partition was not recorded")
    return bubbles(sheet, panels)


def bubbles(sheet: Sheet, panels: dict[str, np.ndarray]) -> "Figure":
    """Counts ``[clients, classes]`` by title; the circles of all panels have the same
    scale.
    """
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
        _draw(place, counts, scale)
        place.set_title(sheet.title(title))
    sizes = legend_sizes(largest)
    handles = [
        places[0].scatter([], [], s=scale * size, color=PLAIN, linewidth=0)
        for size in sizes
    ]
    figure.set_figheight(figure.get_figheight() + LINE)
    figure.legend(
        handles,
        [f"{size:,} samples" for size in sizes],
        ncols=len(sizes),
        loc="outside lower center",
        borderaxespad=0.1,
        handletextpad=0.4,
    )
    return figure


def _draw(place: "Axes", counts: np.ndarray, scale: float) -> None:
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    areas = np.maximum(scale * counts[client, label], 0.5)
    place.scatter(client, label, s=areas, color=PLAIN, alpha=0.8, linewidth=0)
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
