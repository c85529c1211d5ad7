"""Each client's score: a dot a client, and a box from the first to the third quarter of
them with the median.

Clients of all repetitions stand side by side, because with a partition of its own for
each seed client 7 is another one in each. A figure has about ``MOST`` dots: of more
clients every second one has a dot, or every third, the same in all rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots._clients import Rows
from hpcfl.report.plots.base import Sheet, literal, row_id, whole_numbers
from hpcfl.report.reading import named
from hpcfl.report.series import drawable
from hpcfl.report.summary import Run
from hpcfl.report.text import plain
from hpcfl.storage import result_rounds

if TYPE_CHECKING:
    import pandas
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
    """Draw a row for each method, or other ``group``, the best mean on top."""
    scores = _clients.rows(runs, sheet, metric, at, group)
    sheet.notes.append(
        f"a dot is a client's own number, {scores.moment(at)}; a box "
        "has the middle half of the clients and the median; rows by their mean"
    )
    return draw(sheet, scores)


def draw(sheet: Sheet, scores: Rows, label: str = "") -> "Figure":
    """Draw dots and boxes; on a page each dot has the name of its client, and its
    number.

    label: of the x axis, by default the score.
    """
    looks = sheet.looks(scores.methods)
    step = dot_step(scores)
    if step > 1:
        sheet.notes.append(f"a dot for one client in {step}")
    figure, places = _clients.paper(sheet, scores)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(literal(label or _lines.scored(scores.runs, scores.metric)))
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
                gid=row_id(row),
                clip_on=False,
                urls=_urls(dots) if sheet.page else None,
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


def draw_over_rounds(sheet: Sheet, scores: Rows) -> "Figure | None":
    """Draw a line over rounds for each client that has a dot, for a page to show the
    lines of one client; return None where fewer than two rounds are scored.
    """
    from matplotlib.collections import LineCollection

    step = dot_step(scores)
    curves: dict[str, dict[str, np.ndarray]] = {row: {} for row in scores.methods}
    for row, seed, run in scores.repetitions:
        if row in curves:
            curves[row] |= _over_rounds(run, seed, scores, step)
    known = [curve for of_row in curves.values() for curve in of_row.values()]
    rounds = np.unique([number for curve in known for number in curve[:, 0]])
    if len(rounds) < 2:
        return None
    points = min(POINTS, max(2, ALL_POINTS // len(known)))
    shown = rounds[np.linspace(0, len(rounds) - 1, points).round().astype(int)]
    looks = sheet.looks(scores.methods)
    figure, (place,) = sheet.panels(1, height=3.4)
    handles = []
    for row, of_row in curves.items():
        lines = LineCollection(
            [curve[np.isin(curve[:, 0], shown)] for curve in of_row.values()],
            colors=[looks[row].color],
            linestyles=[looks[row].linestyle],
            urls=[f" {client}" for client in of_row],
            gid=row_id(row),
            clip_on=False,
        )
        place.add_collection(lines)
        handles.append(lines)
    place.autoscale_view()
    place.set(xlabel="round", ylabel=literal(_lines.scored(scores.runs, scores.metric)))
    whole_numbers(place.xaxis)
    sheet.legend(figure, handles, list(curves))
    return figure


def dot_step(scores: Rows) -> int:
    """Return n where one client in n has a dot, so that there are about ``MOST``."""
    return max(1, ceil(len(scores.numbers) / MOST))


def _urls(dots: "pandas.DataFrame") -> list[str]:
    """Return the number and the name of each dot's client."""
    return [
        f"{dot.number:.4g} {_name(dot.client, dot.seed)}" for dot in dots.itertuples()
    ]


def _over_rounds(run: Run, seed: str, scores: Rows, step: int) -> dict[str, np.ndarray]:
    """Return by the names of clients their numbers over rounds, [T, 2] with the rounds;
    those of one client in ``step``.
    """
    column = named(run, scores.metric).column
    recorded = run.results.clients
    of_score = result_rounds.compute_entry_scores(
        recorded, column, scores.measure.score
    )
    if of_score is None:
        return {}
    drawn = drawable(scores.measure.factor * of_score)
    followed = np.arange(0, recorded.clients, step)
    chosen = replace(recorded, columns={column: drawn}).only(followed)
    numbers = chosen.series(column)
    scored = np.isfinite(numbers).any(axis=1)
    rounds = run.results.rounds[scored]
    curves = {}
    for client, over_rounds in zip(followed.tolist(), numbers[scored].T, strict=True):
        if np.isfinite(over_rounds).any():
            curves[_name(client, seed)] = np.column_stack([rounds, over_rounds])
    return curves


def _name(client: int, seed: str) -> str:
    """Return the name of a client of one of several repetitions."""
    return f"client {client}, {plain(seed)}"
