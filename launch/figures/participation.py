"""The clients that took part over time, on their own clock: a circle for each client and
stretch of time, the larger the more of its updates counted then, and beside it how many
did in all.

Clients are in the order of their speed. Of many clients neighbours share a row: a circle
then is about one of them on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import virtual_seconds
from hpcfl.report.sheet import PLAIN, Sheet, whole_numbers
from hpcfl.scores.metric_names import MetricName
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 40  # of clients
STRETCHES = 60  # of time
SIZES = 5  # of circles
LARGEST = 8.0  # points, a circle's diameter
UPDATES = MetricName("updates", of_clients=True)
PACE = "device_pace"  # the static array with the time that each client takes


@dataclass(frozen=True)
class Turns:
    """The clients that took part over time.

    Attributes:
        seconds: ``[T]``, of the clients' own time when each round was over, ascending.
        counted: bool ``[T, clients]``, the clients whose update counted in each; clients
            with the fastest first.
    """

    seconds: np.ndarray
    counted: np.ndarray


def draw(runs: list[Run], sheet: Sheet, *, group: Sequence[str] = ()) -> "Figure":
    """Draw a panel for each method, or other ``group``, and data set; of several seeds
    the first.
    """
    arranged = arrange(runs, group, unfinished=True, options="--group")
    panels = {}
    for (row, column), cell in arranged.cells.items():
        title = f"{row}, {column}" if len(arranged.columns) > 1 else row
        panels[title] = turns(cell[0].run)
    sheet.notes += arranged.notes
    sheet.notes.append("one run each; clients by their speed, the fastest first")
    return draw_panels(sheet, panels)


def turns(run: Run) -> Turns:
    """Return the clients that took part over time. Raises UserError where they were not
    recorded.
    """
    seconds = virtual_seconds(run, "post")
    recorded = run.results
    played = recorded.played
    fastest_first = np.argsort(recorded.static[PACE], kind="stable")
    updates = recorded.series(UPDATES)[played][:, fastest_first]
    counted = np.diff(updates, axis=0, prepend=0) > 0
    return Turns(seconds[played], counted)


def draw_panels(sheet: Sheet, panels: Mapping[str, Turns]) -> "Figure":
    """Draw a panel for each title."""
    figure, places = sheet.panels(
        2 * len(panels), most=2, height=3.0, width_ratios=[5, 1], sharey="row"
    )
    pairs = zip(places[::2], places[1::2], strict=True)
    for (title, of_panel), (left, right) in zip(panels.items(), pairs, strict=True):
        left.set_title(sheet.title(title))
        times, rows, updates = binned(of_panel)
        _draw_turns(left, times, rows, updates)
        right.barh(
            rows[:-1],
            updates.sum(axis=0),
            height=0.85 * np.diff(rows),
            align="edge",
            color=PLAIN,
            linewidth=0,
        )
        right.set(xlabel="updates a client")
    return figure


def binned(of_panel: Turns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges of stretches of time [S + 1] and of rows of clients [R + 1], and
    how many updates of a client of each row counted in each, on average, [S, R].
    """
    rounds, clients = of_panel.counted.shape
    end = max(float(of_panel.seconds.max(initial=0.0)), 1e-6)
    times = np.linspace(0.0, end, min(STRETCHES, rounds) + 1)
    rows = np.linspace(0, clients, min(ROWS, clients) + 1).round()
    ended, client = np.nonzero(of_panel.counted)
    # a round lies in the stretch in which it ended, whose end is part of it
    seconds = -of_panel.seconds[ended]
    updates, _, _ = np.histogram2d(seconds, client, bins=[-times[::-1], rows])
    return times, rows, updates[::-1] / np.diff(rows)


def _draw_turns(
    place: "Axes", times: np.ndarray, rows: np.ndarray, updates: np.ndarray
) -> None:
    """Draw the circles of a panel, which hardly overlap."""
    x = (times[:-1] + times[1:]) / 2
    y = (rows[:-1] + rows[1:]) / 2
    diameter = min(LARGEST, 150 / len(y), 360 / len(x))
    # A file has a size once, however many circles have it; but each size anew.
    levels = np.ceil(SIZES * updates / max(updates.max(), 1e-9))
    for level in range(1, SIZES + 1):
        stretch, row = np.nonzero(levels == level)
        area = diameter**2 * level / SIZES
        place.scatter(x[stretch], y[row], s=area, color=PLAIN, linewidth=0)
    place.set(
        xlabel="seconds of the clients' own time",
        ylabel="clients by speed",
        xlim=(0, times[-1]),
        ylim=(0, rows[-1]),
    )
    whole_numbers(place.yaxis)
