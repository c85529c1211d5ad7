"""Each client's score: a dot a client, and a box from the first to the third quarter of
them with the median.

Clients of all repetitions stand side by side, because with a partition of its own for
each seed client 7 is another one in each. A figure has about ``MOST`` dots: of more
clients every second one has a dot, or every third, the same in all rows.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report import client_scores
from hpcfl.report.client_scores import Rows
from hpcfl.report.sheet import Sheet, shorten
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 20_000  # dots of a figure


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw a row for each method, or other ``group``, the best mean on top."""
    scores = client_scores.read_rows(runs, sheet, metric, at, group)
    sheet.notes.append(
        f"a dot is a client's own number, {scores.moment(at)}; a box "
        "has the middle half of the clients and the median; rows by their mean"
    )
    return draw(sheet, scores, scores.label)


def draw(sheet: Sheet, scores: Rows, label: str) -> "Figure":
    """Draw dots and boxes. label: of the x axis."""
    looks = sheet.looks(scores.methods)
    step = max(1, ceil(len(scores.numbers) / MOST))
    if step > 1:
        sheet.notes.append(f"a dot for one client in {step}")
    figure, places = client_scores.make_panels(sheet, scores)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(shorten(label))
        for position, (row, numbers) in enumerate(of_panel.items()):
            dots = numbers[numbers["client"] % step == 0]
            # Neighbours get different heights, so that their dots do not cover one
            # another; by a formula, so that the same runs make the same figure.
            heights = position + 0.28 * np.sin(2.4 * np.arange(len(dots)))
            place.scatter(
                dots["number"],
                heights,
                s=7,
                color=looks[row].color,
                alpha=0.55,
                linewidths=0,
                clip_on=False,
            )
        place.boxplot(
            [numbers["number"] for numbers in of_panel.values()],
            positions=range(len(of_panel)),
            orientation="horizontal",
            widths=0.62,
            showcaps=False,
            showfliers=False,
            whiskerprops={"linestyle": "none"},
            medianprops={"color": "black", "linewidth": 1.4},
            manage_ticks=False,
        )
    return figure
