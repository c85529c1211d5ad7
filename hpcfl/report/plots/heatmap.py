"""Which client does well with which method: a row for each method, a column for each
client.

Repetitions with the same partition are averaged. With another partition the clients are
other ones, so they have columns of their own, behind a gap.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.arrangement import called, setting_of
from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots._clients import Row
from hpcfl.report.plots.base import LETTER, Sheet, literal
from hpcfl.report.reading import counts_of
from hpcfl.report.style import PALE
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How many clients lie between two numbers on the x axis.
STEPS = (1, 2, 5, 10, 20, 50, 100)


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """The best mean on top; a client without a number is hatched."""
    scores = _clients.rows(runs, sheet, metric, at, group)
    figure, places = _clients.paper(sheet, scores, shared=False)
    tables = [cells(rows) for rows in scores.panels.values()]
    low = min(np.nanmin(table) for table in tables)
    high = max(np.nanmax(table) for table in tables)
    fitting = int(sheet.width / len(places) / (5 * LETTER))
    for place, rows, table in zip(places, scores.panels.values(), tables, strict=True):
        place.patch.set(hatch="////", edgecolor=PALE)
        image = place.imshow(
            table, aspect="auto", vmin=low, vmax=high, interpolation="nearest"
        )
        place.grid(False)
        place.set(xlabel="client", ylim=(len(table) - 0.5, -0.5))
        _name_clients(place, partitions(rows), fitting)
    figure.colorbar(image, ax=places, pad=0.01, aspect=30)
    figure.suptitle(literal(_lines.scored(scores.runs, scores.metric)))
    note = f"rows by their mean; a column is a client, {scores.moment(at)}"
    for rows in scores.panels.values():
        note += f"; {said(rows)}"
    sheet.notes.append(note)
    return figure


def partitions(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """The different partitions of the rows' runs.

    Returns:
        By the names of the repetitions that have a partition its test samples, int64
        ``[clients, classes]``.
    """
    runs = [run for row in rows for run in row.runs]
    counts_by_key: dict[bytes, np.ndarray] = {}
    names_by_key: dict[bytes, list[str]] = {}
    settings = [setting_of(run) for run in runs]
    for run, name in zip(runs, called(settings), strict=True):
        counts = counts_of(run, "test")
        key = repr(counts.shape).encode() + counts.tobytes()
        counts_by_key[key] = counts
        names = names_by_key.setdefault(key, [])
        if name not in names:
            names.append(name)
    counts_by_names = {}
    for key, names in names_by_key.items():
        counts_by_names[", ".join(names)] = counts_by_key[key]
    return counts_by_names


def said(rows: Sequence[Row]) -> str:
    """How many clients there are, for the command: ``10 clients each of 3 partitions``."""
    sizes = [len(counts) for counts in partitions(rows).values()]
    if len(sizes) == 1:
        return f"{sizes[0]} clients"
    if len(set(sizes)) == 1:
        return f"{sizes[0]} clients each of {len(sizes)} partitions"
    return f"{sum(sizes)} clients of {len(sizes)} partitions"


def cells(rows: Sequence[Row]) -> np.ndarray:
    """The numbers [rows, columns]; between partitions a column of NaN."""
    table = []
    for row in rows:
        line: list[float] = []
        for counts in partitions(rows).values():
            if line:
                line.append(np.nan)
            line += _means(row, counts)
        table.append(line)
    return np.array(table)


def _means(row: Row, counts: np.ndarray) -> list[float]:
    """Each client's mean over the row's runs that have the partition with ``counts``;
    NaN where there is no such run.
    """
    repetitions = []
    for run, numbers in zip(row.runs, row.numbers, strict=True):
        if np.array_equal(counts_of(run, "test"), counts):
            repetitions.append(numbers)
    if not repetitions:
        return [np.nan] * len(counts)
    means: list[float] = np.mean(repetitions, axis=0).tolist()
    return means


def _name_clients(
    place: "Axes", counts_by_name: dict[str, np.ndarray], most: int
) -> None:
    """Number the columns of ``cells`` and name the partitions.

    Args:
        place: Where the cells are drawn.
        counts_by_name: As ``partitions`` returns it.
        most: How many clients' numbers fit below the columns. Partitions are named above
            them.
    """
    sizes = [len(counts) for counts in counts_by_name.values()]
    starts = []
    start = 0
    for size in sizes:
        starts.append(start)
        start += size + 1  # with the gap behind the partition
    fitting = (step for step in STEPS if _ticks(sizes, step) <= most)
    step = next(fitting, max(sizes))
    columns = []
    clients = []
    for start, size in zip(starts, sizes, strict=True):
        for client in range(0, size, step):
            columns.append(start + client)
            clients.append(str(client))
    place.set_xticks(columns, clients)
    if len(sizes) > 1:
        middles = []
        for start, size in zip(starts, sizes, strict=True):
            middles.append(start + (size - 1) / 2)
        names = place.secondary_xaxis("top")
        names.set_xticks(middles, [literal(name) for name in counts_by_name])
        names.tick_params(length=0)
        names.spines[:].set_visible(False)
    for start in starts[1:]:
        place.axvspan(
            start - 1.5,
            start - 0.5,
            facecolor="white",
            edgecolor="black",
            linewidth=0.6,
        )


def _ticks(sizes: Sequence[int], step: int) -> int:
    """How many clients' numbers are shown of partitions of some sizes."""
    return sum(ceil(size / step) for size in sizes)
