"""Draw the worst tenth, the mean and the best tenth of the clients of each method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.metric_values import Reading
from hpcfl.report.plots import clients
from hpcfl.report.sheet import Sheet, choose_looks
from hpcfl.report.text import shorten
from hpcfl.scores.base import summarise
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw one row per method, or per value of ``group``, with the best mean at the top.

    Each number is a mean over seeds.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        metric: Name of a per-client score; default the primary metric.
        at: Rounds at which the score is read: "best", "last" or "tail".
        group: Keys that define a row; default the method.
    """
    scores = clients.read_rows(runs, sheet, Reading(metric, at), group)
    figure, places = clients.make_panels(sheet, scores)
    looks = choose_looks(scores.methods)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(shorten(scores.label))
        for position, (row, numbers) in enumerate(of_panel.items()):
            look = looks[row]
            of_seeds = [one.to_numpy() for _, one in numbers.groupby("seed")["number"]]
            worst, mean, best = compute_spread(of_seeds, scores.measure.better)
            ends = [worst, best], [position, position]
            place.plot(*ends, color=look.color, marker="|", markersize=7)
            place.plot([mean], [position], color=look.color, marker=look.marker)
    sheet.notes.append(
        "from the worst tenth of the clients over the mean (its mark) to the best tenth, "
        f"{scores.moment}, mean over seeds"
    )
    return figure


def compute_spread(
    numbers: Sequence[np.ndarray], better: str
) -> tuple[float, float, float]:
    """Return the worst tenth, the mean and the best tenth, averaged over repetitions.

    Args:
        numbers: Scores of the clients by repetition.
        better: "up" if larger scores are better, else "down".
    """
    opposite = "down" if better == "up" else "up"
    summaries = []
    for of_run in numbers:
        worst = summarise("worst_tenth", of_run, better)
        mean = summarise("mean", of_run)
        best = summarise("worst_tenth", of_run, opposite)
        summaries.append((worst, mean, best))
    worst, mean, best = np.nanmean(summaries, axis=0).tolist()
    return worst, mean, best
