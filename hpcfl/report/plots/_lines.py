"""Lines with a band: means and standard deviations over the repetitions of an
experiment, drawn as curves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.metric_values import At, resolve_metric
from hpcfl.report.plots.base import Sheet
from hpcfl.report.style import Look
from hpcfl.scores.metric_names import RECORDED, Measure, is_held_out, models_of
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

MARKS = 8  # approximate number of marks along a line
MANY = 12  # a panel with more lines is higher, and has paler bands
MOMENTS = {"pre": "before local training", "post": "after local training"}


@dataclass(frozen=True)
class Line:
    """One line: at ``x`` [T] the mean and the sample standard deviation over ``runs``
    repetitions.
    """

    label: str
    method: str
    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    runs: int

    @property
    def end(self) -> float:
        """The last of the means; NaN without one."""
        return float(self.mean[-1]) if len(self.mean) else np.nan


def method_of(run: Run) -> str:
    """Return the method's name, by which its look is chosen."""
    return str(run.config["method"]["name"])


def draw(
    sheet: Sheet,
    panels: Mapping[str, Sequence[Line]],
    measure: Measure | None,
    shared: bool = True,
    *,
    xlabel: str,
    ylabel: str,
) -> "Figure":
    """Draw lines in panels by title, with one legend for all.

    Args:
        sheet: The paper to draw on.
        panels: By title the lines of a panel.
        measure: Of the numbers on the y axis; the best line by it is first in the
            legend.
        shared: Whether all panels have the same y axis.
        xlabel: The label of each x axis.
        ylabel: The label of the y axes of the first column.
    """
    most = max(map(len, panels.values()))
    height = 3.8 if most > MANY else 0
    figure, places = sheet.panels(len(panels), height=height, sharey=shared)
    lines = [line for of_panel in panels.values() for line in of_panel]
    looks = sheet.looks({line.label: line.method for line in lines})
    handles = {}
    for place, (title, of_panel) in zip(places, panels.items(), strict=True):
        for position, line in enumerate(of_panel):
            look = looks[line.label]
            handles[line.label] = _draw_line(place, position, line, look)
            if line.runs > 1:
                _draw_band(place, line, look, 0.15 if most <= MANY else 0.04)
        place.set(title=sheet.title(title), xlabel=xlabel)
        if place.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            place.set_ylabel(sheet.upright(ylabel))
    labels = _best_first(lines, measure)
    sheet.legend(figure, [handles[label] for label in labels], labels)
    return figure


def _best_first(lines: Iterable[Line], measure: Measure | None) -> list[str]:
    """Return the lines' labels, that with the best end first and those without an end
    last.
    """
    rank = measure.rank if measure else float

    def order(line: Line) -> float:
        return -float(np.nan_to_num(rank(line.end), nan=-np.inf))

    return list(dict.fromkeys(line.label for line in sorted(lines, key=order)))


def _draw_line(place: "Axes", position: int, line: Line, look: Look) -> "Line2D":
    """Draw the means, with marks that lie elsewhere for each ``position`` in a panel."""
    step = max(1, len(line.x) // MARKS)
    [handle] = place.plot(
        line.x,
        line.mean,
        color=look.color,
        marker=look.marker,
        linestyle=look.linestyle,
        markevery=(position % step, step),
    )
    return handle


def _draw_band(place: "Axes", line: Line, look: Look, opacity: float) -> None:
    """Draw a band of a sample standard deviation around the means."""
    place.fill_between(
        line.x,
        line.mean - line.std,
        line.mean + line.std,
        color=look.color,
        alpha=opacity,
        linewidth=0,
    )


def scored(runs: Sequence[Run], metric: str) -> str:
    """Return an axis' label: ``test accuracy (%), before local training``, or of
    held-out samples ``validation accuracy …``.
    """
    metrics = [resolve_metric(run, metric) for run in runs]
    name, measure = metrics[0]
    if measure is None:
        return (name.number if name.column == RECORDED else metric).replace("_", " ")
    samples = "validation" if is_held_out(name.column) else "test"
    unit = f" ({measure.unit})" if measure.unit else ""
    kind = f", {measure.kind.replace('_', ' ')}"
    if measure.kind in ("weighted", "mean"):
        kind = ""
    columns = {models_of(of_run.column) for of_run in metrics}
    models = "each method's own models"
    if len(columns) == 1:
        [column] = columns
        models = MOMENTS.get(column, column)
    return f"{samples} {measure.score}{unit}{kind}, {models}"


def moment(runs: Sequence[Run], at: At) -> str:
    """Return a note on the rounds in which numbers are read: ``best of the rounds, by
    test samples``.
    """
    if at != "best":
        return f"{at} of the rounds"
    best_by = sorted({run.summary.best_by for run in runs})
    return f"best of the rounds, by {' or '.join(best_by)} samples"


def repeated(lines: Sequence[Line]) -> str:
    """Return a note on the repetitions: ``mean ± sample standard deviation over 3
    seeds``.
    """
    counts = sorted({line.runs for line in lines})
    if counts == [1]:
        return "one run each"
    seeds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    return f"mean ± sample standard deviation over {seeds} seeds"
