"""Each client's score: a dot a client, and a box from the first to the third quarter of
them with the median.

Clients of all repetitions stand side by side, because with a partition of its own for
each seed client 7 is somebody else in each.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots.base import Sheet, literal
from hpcfl.report.style import looks
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """A row for each method, or other ``group``, the best mean on top."""
    found = _clients.rows(runs, sheet, metric, at, group)
    figure, places = _clients.paper(sheet, found)
    for place, of_panel in zip(places, found.panels.values(), strict=True):
        place.set_xlabel(literal(_lines.scored(found.runs, found.metric)))
        for position, (row, look) in enumerate(
            zip(of_panel, looks([row.method for row in of_panel]), strict=True)
        ):
            heights = position + 0.28 * np.sin(
                2.4 * np.arange(len(row.known))
            )  # apart, and not by chance
            place.plot(
                row.known,
                heights,
                linestyle="none",
                marker="o",
                markersize=2,
                color=look.color,
                alpha=0.55,
                markeredgewidth=0,
            )
            low, middle, high = np.percentile(row.known, [25, 50, 75])
            place.barh(
                position,
                high - low,
                left=low,
                height=0.62,
                facecolor="none",
                edgecolor="black",
                linewidth=0.6,
            )
            place.plot(
                [middle, middle],
                [position - 0.31, position + 0.31],
                color="black",
                linewidth=1.4,
            )
    sheet.notes.append(
        f"a dot is a client's own number, {found.moment(at)}; a box "
        "has the middle half of the clients and the median; rows by their mean"
    )
    return figure
