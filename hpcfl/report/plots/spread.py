"""The worst tenth of the clients, all of them and the best tenth: how fair methods are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots import _clients, _lines
from hpcfl.report.plots.base import Sheet, literal
from hpcfl.report.summary import Run
from hpcfl.scores._summaries import summarised

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
    """A row for each method, or other ``group``, the best mean on top; each number is a
    mean over seeds.
    """
    scores = _clients.rows(runs, sheet, metric, at, group)
    figure, places = _clients.paper(sheet, scores)
    better = scores.measure.better
    looks = sheet.looks({row.label: row.method for row in scores.rows})
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(literal(_lines.scored(scores.runs, scores.metric)))
        for position, row in enumerate(of_panel):
            look = looks[row.label]
            worst, mean, best = spread(row.numbers, better)
            place.plot(
                [worst, best],
                [position, position],
                color=look.color,
                linewidth=1.6,
                alpha=0.6,
            )
            for end in (worst, best):
                place.plot(
                    [end],
                    [position],
                    marker="|",
                    color=look.color,
                    markersize=7,
                    markeredgewidth=1.6,
                )
            place.plot(
                [mean], [position], marker=look.marker, color=look.color, markersize=4
            )
    sheet.notes.append(
        "from the worst tenth of the clients over the mean (its mark) to the best tenth, "
        f"{scores.moment(at)}, mean over seeds"
    )
    return figure


def spread(numbers: Sequence[np.ndarray], better: str) -> tuple[float, float, float]:
    """The mean over repetitions of the worst tenth, of the mean and of the best tenth
    of ``numbers``.
    """
    opposite = "down" if better == "up" else "up"
    summaries = []
    for of_run in numbers:
        worst = summarised("worst_tenth", of_run, better)
        mean = summarised("mean", of_run)
        best = summarised("worst_tenth", of_run, opposite)
        summaries.append((worst, mean, best))
    worst, mean, best = np.nanmean(summaries, axis=0).tolist()
    return worst, mean, best
