"""Each client's score: a dot a client, and a box from the first to the third quarter of
them with the median.

Clients of all repetitions stand side by side, because with a partition of its own for
each seed client 7 is somebody else in each. Where there are more dots than ``MOST``, as
with a thousand clients of more than twenty methods, every second client has one, or
every third, the same in all rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots._clients import Row, Rows
from hpcfl.report.plots.base import Sheet, literal, row_id, whole_numbers
from hpcfl.report.reading import named
from hpcfl.report.series import drawable
from hpcfl.report.style import Look
from hpcfl.report.summary import Run
from hpcfl.report.text import plain
from hpcfl.storage import moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20_000  # dots of a figure, and lines of the one over rounds
POINTS = 60  # of a line over rounds
ALL_POINTS = 160_000  # of all lines over rounds together


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """A row for each method, or other ``group``, the best mean on top."""
    scores = _clients.rows(runs, sheet, metric, at, group)
    sheet.notes.append(
        f"a dot is a client's own number, {scores.moment(at)}; a box "
        "has the middle half of the clients and the median; rows by their mean"
    )
    return draw(sheet, scores)


def draw(sheet: Sheet, scores: Rows, label: str = "") -> "Figure":
    """Dots and boxes; on a page each dot says which client it is, and its number.

    label: what the numbers are, by default the score.
    """
    label = label or literal(_lines.scored(scores.runs, scores.metric))
    looks = sheet.looks({row.label: row.method for row in scores.rows})
    step = dot_step(scores.rows)
    if step > 1:
        sheet.notes.append(f"a dot for one client in {step}")
    figure, places = _clients.paper(sheet, scores)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(label)
        # A box without a width, such as that of equal numbers, is not at the edge.
        place.use_sticky_edges = False
        for position, row in enumerate(of_panel):
            look = looks[row.label]
            _draw_dots(place, position, row, look, step, bool(sheet.page))
            _draw_box(place, position, row)
    return figure


def draw_over_rounds(sheet: Sheet, scores: Rows) -> "Figure | None":
    """A line over rounds for each client that has a dot, for a page to show the lines
    of one client; None where fewer than two rounds are scored.
    """
    from matplotlib.collections import LineCollection

    step = dot_step(scores.rows)
    series = {row.label: _over_rounds(row, scores, step) for row in scores.rows}
    known = [curve for of_row in series.values() for curve in of_row.values()]
    if not known:
        return None
    rounds = np.unique(np.concatenate([curve[:, 0] for curve in known]))
    if len(rounds) < 2:
        return None
    points = min(POINTS, max(2, ALL_POINTS // len(known)))
    shown = rounds[np.linspace(0, len(rounds) - 1, points).round().astype(int)]
    looks = sheet.looks({row.label: row.method for row in scores.rows})
    figure, (place,) = sheet.panels(1, height=3.4)
    handles = {}
    for row in scores.rows:
        curves = series[row.label]
        handles[row.label] = LineCollection(
            [curve[np.isin(curve[:, 0], shown)] for curve in curves.values()],
            colors=[looks[row.label].color],
            linestyles=[looks[row.label].linestyle],
            urls=[f" {client}" for client in curves],
            gid=row_id(row.label),
            clip_on=False,
        )
        place.add_collection(handles[row.label])
    place.autoscale_view()
    place.set(xlabel="round", ylabel=literal(_lines.scored(scores.runs, scores.metric)))
    whole_numbers(place.xaxis)
    sheet.legend(figure, list(handles.values()), list(handles))
    return figure


def dot_step(rows: Sequence[Row]) -> int:
    """Of how many clients one has a dot, so that there are at most ``MOST``."""
    clients = sum(len(numbers) for row in rows for numbers in row.numbers)
    return max(1, ceil(clients / MOST))


def numbers_by_client(row: Row, step: int) -> dict[str, float]:
    """The numbers of one client in ``step``, by a name such as ``client 7, seed=0``."""
    by_client: dict[str, float] = {}
    for seed, numbers in zip(row.seeds, row.numbers, strict=True):
        for client in range(0, len(numbers), step):
            number = float(numbers[client])
            if np.isfinite(number):
                by_client[_name(client, seed)] = number
    return by_client


def _draw_dots(
    place: "Axes", position: int, row: Row, look: Look, step: int, pointing: bool
) -> None:
    """Draw the dots of a row at a height of ``position``.

    Args:
        place: Where to draw them.
        position: The row's position on the y axis.
        row: Whose numbers are drawn.
        look: In which colour.
        step: As for ``numbers_by_client``.
        pointing: Whether each dot says, for a page, of which client it is.
    """
    by_client = numbers_by_client(row, step)
    # Neighbours get different heights, so that their dots do not cover one another; by a
    # formula instead of at random, so that the same runs make the same figure.
    waves = np.sin(2.4 * np.arange(len(by_client)))
    heights = position + 0.28 * waves
    # A page reads number and client from a dot's address.
    urls = [f"{number:.4g} {client}" for client, number in by_client.items()]
    place.scatter(
        list(by_client.values()),
        heights,
        s=7,
        color=look.color,
        alpha=0.55,
        linewidths=0,
        gid=row_id(row.label),
        clip_on=False,
        urls=urls if pointing else None,
    )


def _draw_box(place: "Axes", position: int, row: Row) -> None:
    """The box of a row from the first to the third quartile, and its median."""
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


def _over_rounds(row: Row, scores: Rows, step: int) -> Mapping[str, np.ndarray]:
    """By the names of clients their numbers over rounds, [T, 2] with the rounds; those
    of one client in ``step``.
    """
    curves: dict[str, np.ndarray] = {}
    for run, seed in zip(row.runs, row.seeds, strict=True):
        column = named(run, scores.metric).column
        recorded = run.results.clients
        of_score = moments.of_entries(recorded, column, scores.measure.score)
        if of_score is None:
            continue
        drawn = drawable(scores.measure.factor * of_score)
        followed = np.arange(0, recorded.clients, step)
        numbers = (
            replace(recorded, columns={column: drawn}).only(followed).series(column)
        )
        scored = np.isfinite(numbers).any(axis=1)
        rounds = run.results.rounds[scored]
        for client, over_rounds in zip(
            followed.tolist(), numbers[scored].T, strict=True
        ):
            curve = np.column_stack([rounds, over_rounds])
            if np.isfinite(curve).all(axis=1).any():
                curves[_name(client, seed)] = curve
    return curves


def _name(client: int, seed: str) -> str:
    """What a client of one of several repetitions is called."""
    return f"client {client}, {plain(seed)}"
