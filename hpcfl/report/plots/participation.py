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
        seconds_of(repetitions[0], "post")  # or it says why there are none
        title = row if len(arranged.columns) == 1 else f"{row}, {column}"
        panels[title] = turns(repetitions[0])
    sheet.notes += arranged.notes
    sheet.notes.append("one run each; clients by their speed, the fastest first")
    return draw(sheet, panels)


def is_recorded(run: Run) -> bool:
    """Whether the results of a run say who took part when."""
    recorded = run.results
    return (
        UPDATES in recorded.names and PACE in recorded.static and not recorded.is_packed
    )


def turns(run: Run) -> Turns:
    """Who took part when in a run that has recorded it."""
    recorded = run.results
    played = recorded.played
    _, positions = AXES["virtual"]
    order = np.argsort(recorded.static[PACE], kind="stable")
    updates = recorded.series(UPDATES)[played][:, order]
    before = np.vstack([np.zeros_like(updates[:1]), updates[:-1]])
    return Turns(positions(run, "post")[played], updates > before)


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
    edges = np.linspace(0.0, end, min(STRETCHES, rounds) + 1)
    # a round lies in the stretch in which it ended
    stretches = np.searchsorted(edges[1:-1], of_panel.seconds, side="left")
    by_client = np.zeros((len(edges) - 1, clients))
    np.add.at(by_client, stretches, of_panel.counted.astype(float))
    rows = rows_of(clients)
    sums = np.add.reduceat(by_client, rows[:-1], axis=1)
    return edges, (sums / np.diff(rows)).T


def _draw_turns(place: "Axes", of_panel: Turns, width: float) -> None:
    """Draw the circles of a panel on a sheet of so many inches."""
    edges, updates = in_stretches(of_panel)
    rows = rows_of(of_panel.counted.shape[1])
    times = (edges[:-1] + edges[1:]) / 2
    heights = (rows[:-1] + rows[1:]) / 2
    # points; as wide as a stretch or as high as a row, whichever is less
    across = 0.7 * width / len(times)
    diameter = 72 * min(across, 0.75 * HEIGHT / len(heights), 0.12)
    # A file says a size once, however many circles have it; but of each size anew.
    levels = np.ceil(SIZES * updates / max(updates.max(), 1e-9)).astype(int)
    for level in range(1, SIZES + 1):
        row, stretch = np.nonzero(levels == level)
        place.scatter(
            times[stretch],
            heights[row],
            s=pi / 4 * diameter**2 * level / SIZES,
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
    place.barh(
        rows[:-1],
        np.add.reduceat(totals, rows[:-1]) / heights,
        height=0.85 * heights,
        align="edge",
        color=PLAIN,
        linewidth=0,
    )
    place.set(xlabel="updates a client")
