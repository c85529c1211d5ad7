"""Figure of a tuning: expected best score over the number of trials.

Each method has a line for its trials and a mark for its untuned configuration.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfl.report import figures
from hpcfl.report.sheet import Sheet, choose_looks, set_whole_ticks
from hpcfl.report.text import shorten
from hpcfl.scores.metric_names import Measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scores of each method after 0, 1, 2 … trials. The score after 0 trials belongs to the
# untuned configuration; None if it is missing.
Curves = Mapping[str, Sequence[float | None]]


def write(path: Path, curves: Curves, measure: Measure) -> None:
    """Draw the figure into a file. Raises RunFailure if it cannot be written."""
    figures.write(path, lambda: draw(Sheet(figures.PAGE), curves, measure))


def draw(sheet: Sheet, curves: Curves, measure: Measure) -> "Figure":
    """Draw tuned methods as lines and untuned ones as marks at 0 trials."""
    figure, [place] = sheet.panels(1, height=3.5)
    looks = choose_looks({method: method for method in curves})
    handles = []
    for method, scores in curves.items():
        untuned, *tuned = [
            math.nan if score is None else measure.factor * score for score in scores
        ]
        look = vars(looks[method])
        handles += place.plot(range(1, len(tuned) + 1), tuned, **look)
        place.plot([0], [untuned], **look)
    place.set_xlabel("trials; 0: untuned")
    place.set_ylabel(
        shorten(f"expected best validation {measure.score}{measure.label_end}")
    )
    set_whole_ticks(place.xaxis)
    sheet.legend(figure, handles, list(curves))
    return figure
