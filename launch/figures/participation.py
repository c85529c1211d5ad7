"""Draw the participation of clients over virtual time.

The area of a circle is the number of updates of a client in an interval of time. Bars next
to the panel show totals. Clients are sorted by speed. With many clients several share a
row, and a circle shows their average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import read_virtual_seconds
from hpcfl.report.sheet import PLAIN, Sheet, set_whole_ticks
from hpcfl.scores.metric_names import MetricName
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 40  # maximum number of rows of clients
STRETCHES = 60  # maximum number of intervals of time
SIZES = 5  # number of sizes of circles
LARGEST = 8.0  # largest diameter of a circle in points
UPDATES = MetricName("updates", of_clients=True)
PACE = "device_pace"  # static array with the relative training time of each client


@dataclass(frozen=True)
class Turns:
    """Participation of clients by round.

    Attributes:
        seconds: Virtual seconds at the end of each round, ascending, ``[T]``.
        counted: Whether the server counted an update of a client in a round, bool ``[T,
            clients]``, fastest clients first.
    """

    seconds: np.ndarray
    counted: np.ndarray


def draw(runs: list[Run], sheet: Sheet, *, group: Sequence[str] = ()) -> "Figure":
    """Draw one panel per data set and method, or per value of ``group``.

    Only the first of several seeds is drawn.
    """
    arranged = arrange(runs, group, unfinished=True, options="--group")
    panels = {}
    for (row, column), cell in arranged.cells.items():
        title = f"{row}, {column}" if len(arranged.columns) > 1 else row
        panels[title] = read_turns(cell[0].run)
    sheet.notes += arranged.notes
    sheet.notes.append("one run each; clients by their speed, the fastest first")
    return draw_panels(sheet, panels)


def read_turns(run: Run) -> Turns:
    """Return the participation of clients in a run.

    Raises:
        UserError: If virtual time was not recorded.
    """
    seconds = read_virtual_seconds(run, "post")
    recorded = run.results
    played = recorded.played
    fastest_first = np.argsort(recorded.static[PACE], kind="stable")
    updates = recorded.get_series(UPDATES)[played][:, fastest_first]
    counted = np.diff(updates, axis=0, prepend=0) > 0
    return Turns(seconds[played], counted)


def draw_panels(sheet: Sheet, panels: Mapping[str, Turns]) -> "Figure":
    """Draw one panel of circles and one panel of totals per title."""
    figure, places = sheet.panels(
        2 * len(panels), most=2, height=3.0, width_ratios=[5, 1], sharey="row"
    )
    pairs = zip(places[::2], places[1::2], strict=True)
    for (title, of_panel), (left, right) in zip(panels.items(), pairs, strict=True):
        left.set_title(sheet.title(title))
        times, rows, updates = count_updates(of_panel)
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


def count_updates(of_panel: Turns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count updates by intervals of time and rows of clients.

    Returns:
        Edges of the intervals [S + 1], edges of the rows [R + 1], and mean number of
        updates per client, [S, R].
    """
    rounds, clients = of_panel.counted.shape
    end = max(float(of_panel.seconds.max(initial=0.0)), 1e-6)
    times = np.linspace(0.0, end, min(STRETCHES, rounds) + 1)
    rows = np.linspace(0, clients, min(ROWS, clients) + 1).round()
    ended, client = np.nonzero(of_panel.counted)
    # A round belongs to the interval in which it ended; intervals include their end.
    seconds = -of_panel.seconds[ended]
    updates, _, _ = np.histogram2d(seconds, client, bins=[-times[::-1], rows])
    return times, rows, updates[::-1] / np.diff(rows)


def _draw_turns(
    place: "Axes", times: np.ndarray, rows: np.ndarray, updates: np.ndarray
) -> None:
    """Draw the circles of a panel with little overlap."""
    x = (times[:-1] + times[1:]) / 2
    y = (rows[:-1] + rows[1:]) / 2
    diameter = min(LARGEST, 150 / len(y), 360 / len(x))
    # A PDF stores each size of circle once, so few sizes keep the file small.
    levels = np.ceil(SIZES * updates / max(updates.max(), 1e-9))
    for level in range(1, SIZES + 1):
        stretch, row = np.nonzero(levels == level)
        area = diameter**2 * level / SIZES
        place.scatter(x[stretch], y[row], s=area, color=PLAIN, linewidth=0)
    place.set(
        xlabel="seconds of virtual time",
        ylabel="clients by speed",
        xlim=(0, times[-1]),
        ylim=(0, rows[-1]),
    )
    set_whole_ticks(place.yaxis)
