"""Who of the clients took part when, on their own clock: a circle for each client and
stretch of time, the larger the more of its updates counted then, and beside it how many
did in all.

Clients are in the order of their speed. Of many clients neighbours share a row, so that a
thousand are as readable as fifty: a circle then is about one of them on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.arrangement import arrange
from hpcfl.report.plots.base import Sheet, whole_numbers
from hpcfl.report.series import AXES
from hpcfl.report.style import PLAIN
from hpcfl.report.summary import Run
from hpcfl.report.virtual_time import seconds_of
from hpcfl.scores._metric_name import MetricName

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 40  # of clients
STRETCHES = 60  # of time
SIZES = 5  # of circles
HEIGHT = 3.0  # inches of a panel
LARGEST = 0.12  # inches of a circle
POINTS = 72  # of an inch
UPDATES = MetricName("updates", of_clients=True)
PACE = "device_pace"  # the static array with the time that each client takes


@dataclass(frozen=True)
class Turns:
    """Who took part when.

    Attributes:
        seconds: ``[T]``, of the clients' own time when each round was over, ascending.
        counted: bool ``[T, clients]``, whose update counted in each; clients with the
            fastest first.
    """

    seconds: np.ndarray
    counted: np.ndarray


def plugin(runs: list[Run], sheet: Sheet, *, group: Sequence[str] = ()) -> "Figure":
    """A panel for each method, or other ``group``, and data set; of several seeds the
    first.
    """
    arranged = arrange(runs, group, unfinished=True, options="--group")
    panels = {}
    for (row, column), repetitions in arranged.repetitions.items():
        title = row
        if len(arranged.columns) > 1:
            title = f"{row}, {column}"
        panels[title] = turns(repetitions[0])
    sheet.notes += arranged.notes
    sheet.notes.append("one run each; clients by their speed, the fastest first")
    return draw(sheet, panels)


def is_recorded(run: Run) -> bool:
    """Whether the results of a run say who took part when."""
    recorded = run.results
    if recorded.is_packed:
        return False
    return UPDATES in recorded.names and PACE in recorded.static


def turns(run: Run) -> Turns:
    """Who took part when in a run. Raises UserError where it does not say so."""
    seconds = seconds_of(run, "post")
    recorded = run.results
    played = recorded.played
    fastest_first = np.argsort(recorded.static[PACE], kind="stable")
    updates = recorded.series(UPDATES)[played]
    updates = updates[:, fastest_first]
    none_yet = np.zeros_like(updates[:1])
    before = np.vstack([none_yet, updates[:-1]])
    counted = updates > before
    return Turns(seconds[played], counted)


def draw(sheet: Sheet, panels: Mapping[str, Turns]) -> "Figure":
    """A panel for each title."""
    figure, places = sheet.panels(
        2 * len(panels), most=2, height=HEIGHT, width_ratios=[5, 1], sharey="row"
    )
    pairs = zip(places[::2], places[1::2], strict=True)
    for (title, of_panel), (left, right) in zip(panels.items(), pairs, strict=True):
        left.set_title(sheet.title(title))
        _draw_turns(left, of_panel, sheet.width)
        _draw_totals(right, of_panel)
    return figure


def rows_of(clients: int) -> np.ndarray:
    """The edges of the rows that so many clients lie in, ascending from 0."""
    rows = min(ROWS, clients)
    return np.linspace(0, clients, rows + 1).round().astype(int)


def in_stretches(of_panel: Turns) -> tuple[np.ndarray, np.ndarray]:
    """The edges [S + 1] of stretches of time of equal length, and how many updates of a
    client of each row counted in each, on average, [rows, S].
    """
    rounds, clients = of_panel.counted.shape
    end = max(float(of_panel.seconds.max(initial=0.0)), 1e-6)
    count = min(STRETCHES, rounds)
    edges = np.linspace(0.0, end, count + 1)
    # a round lies in the stretch in which it ended
    stretches = np.searchsorted(edges[1:-1], of_panel.seconds, side="left")
    by_client = np.zeros((count, clients))
    np.add.at(by_client, stretches, of_panel.counted.astype(float))
    rows = rows_of(clients)
    sums = np.add.reduceat(by_client, rows[:-1], axis=1)
    clients_of_row = np.diff(rows)
    means = sums / clients_of_row
    return edges, means.T


def _draw_turns(place: "Axes", of_panel: Turns, width: float) -> None:
    """Draw the circles of a panel on a sheet of so many inches."""
    edges, updates = in_stretches(of_panel)
    rows = rows_of(of_panel.counted.shape[1])
    times = (edges[:-1] + edges[1:]) / 2
    heights = (rows[:-1] + rows[1:]) / 2
    # as wide as a stretch or as high as a row, whichever is less
    across = 0.7 * width / len(times)
    upright = 0.75 * HEIGHT / len(heights)
    diameter = POINTS * min(across, upright, LARGEST)
    area = pi / 4 * diameter**2
    # A file says a size once, however many circles have it; but of each size anew.
    most = max(updates.max(), 1e-9)
    levels = np.ceil(SIZES * updates / most).astype(int)
    for level in range(1, SIZES + 1):
        row, stretch = np.nonzero(levels == level)
        place.scatter(
            times[stretch],
            heights[row],
            s=area * level / SIZES,
            color=PLAIN,
            linewidth=0,
        )
    place.set(
        xlabel=AXES["virtual"][0],
        ylabel="clients by speed",
        xlim=(0, edges[-1]),
        ylim=(0, rows[-1]),
    )
    whole_numbers(place.yaxis)


def _draw_totals(place: "Axes", of_panel: Turns) -> None:
    """Draw how many updates of a client of each row counted in all, on average."""
    totals = of_panel.counted.sum(axis=0)
    rows = rows_of(len(totals))
    heights = np.diff(rows)
    sums = np.add.reduceat(totals, rows[:-1])
    place.barh(
        rows[:-1],
        sums / heights,
        height=0.85 * heights,
        align="edge",
        color=PLAIN,
        linewidth=0,
    )
    place.set(xlabel="updates a client")
