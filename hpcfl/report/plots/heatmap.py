"""Which client does well with which method: a row for each method, a column for each client.

Repetitions with the same partition are averaged; clients of other partitions are others and stand beside
them, behind a gap.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots._clients import Row
from hpcfl.report.plots.base import Sheet, literal, whole_numbers
from hpcfl.report.style import PALE
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plugin(runs: list[Run], sheet: Sheet, *, metric: str = "", at: str = "best",
           group: Sequence[str] = ()) -> "Figure":
    """The best mean on top; a client without a number is grey."""
    found = _clients.rows(runs, sheet, metric, at, group)
    figure, places = _clients.paper(sheet, found)
    table = {title: cells(of_panel) for title, of_panel in found.panels.items()}
    low = min(np.nanmin(one) for one in table.values())
    high = max(np.nanmax(one) for one in table.values())
    for place, (title, one) in zip(places, table.items(), strict=True):
        place.set_facecolor(PALE)
        image = place.imshow(one, aspect="auto", vmin=low, vmax=high, interpolation="nearest")
        place.grid(False)
        place.set_xlabel("client")
        whole_numbers(place.xaxis, 12)
        place.xaxis.set_major_formatter(client_numbers(found.panels[title]))
    figure.colorbar(image, ax=places, pad=0.01, aspect=30)
    figure.suptitle(literal(_lines.scored(found.runs, found.metric)))
    sheet.notes.append(f"rows by their mean, {max(one.shape[1] for one in table.values())} columns, "
                       f"{at} of the rounds")
    return figure


def partitions(rows: Sequence[Row]) -> list[np.ndarray]:
    """The different partitions of the rows' runs, each as its clients' test samples."""
    found: list[np.ndarray] = []
    for run in (run for row in rows for run in row.runs):
        if not any(np.array_equal(run.results.static["test_counts"], one) for one in found):
            found.append(run.results.static["test_counts"])
    return found


def client_numbers(rows: Sequence[Row]) -> Callable[[float, float], str]:
    """What stands below a column of ``cells``: the client's number in its partition, nothing at a gap."""
    numbers = [text for counts in partitions(rows) for text in (*map(str, range(len(counts))), "")]
    return lambda place, position: numbers[int(place)] if 0 <= place < len(numbers) else ""


def cells(rows: Sequence[Row]) -> np.ndarray:
    """The numbers [rows, columns]; between partitions a column of NaN."""
    table = []
    for row in rows:
        line: list[float] = []
        for counts in partitions(rows):
            same = [numbers for run, numbers in zip(row.runs, row.numbers, strict=True)
                    if np.array_equal(run.results.static["test_counts"], counts)]
            line += [np.nan] if line else []
            line += np.mean(same, axis=0).tolist() if same else [np.nan] * len(counts)
        table.append(line)
    return np.array(table)
