"""Lines with a band: means and standard deviations over the repetitions of an
experiment, drawn as curves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.report.plots.base import Sheet, row_id
from hpcfl.report.reading import named
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure
from hpcfl.scores._metric_name import RECORDED, is_held_out, models_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = 8  # about so many marks along a line
BAND = 0.6  # how opaque the bands of all lines are together
MANY = 12  # with more lines a panel is higher
MOMENTS = {"pre": "before local training", "post": "after local training"}


@dataclass(frozen=True)
class Line:
    """One line: at ``x`` [T] the mean and the population's standard deviation over
    ``runs`` repetitions.
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
    """The method's name, by which its look is chosen."""
    return str(run.config["method"]["name"])


def draw(
    sheet: Sheet,
    panels: Mapping[str, Sequence[Line]],
    measure: Measure | None,
    shared: bool = True,
    **axes: str,
) -> "Figure":
    """Lines in panels by title, with one legend for all.

    measure: of the numbers on the y axis, which says which line is best: it is first in
    the legend. shared: whether all panels have the same y axis. axes: ``xlabel`` and
    ``ylabel``.
    """
    crowded = max(map(len, panels.values())) > MANY
    figure, places = sheet.panels(
        len(panels), height=3.8 if crowded else 0, sharey=shared
    )
    rank = measure.rank if measure else float
    labels: dict[str, Line] = {}
    for line in sorted(
        (line for lines in panels.values() for line in lines),
        key=lambda line: -np.nan_to_num(rank(line.end), nan=-np.inf),
    ):
        labels.setdefault(line.label, line)
    chosen = sheet.looks({label: line.method for label, line in labels.items()})
    handles = {}
    for place, (title, lines) in zip(places, panels.items(), strict=True):
        for position, line in enumerate(lines):
            look = chosen[line.label]
            step = max(1, len(line.x) // MARKS)
            (handles[line.label],) = place.plot(
                line.x,
                line.mean,
                color=look.color,
                marker=look.marker,
                linestyle=look.linestyle,
                markevery=(position % step, step),
                gid=row_id(line.label),
            )
            if line.runs > 1:
                place.fill_between(
                    line.x,
                    line.mean - line.std,
                    line.mean + line.std,
                    color=look.color,
                    alpha=min(0.15, BAND / len(lines)),
                    linewidth=0,
                    gid=row_id(line.label),
                )
        place.set(title=sheet.title(title), xlabel=axes["xlabel"])
    for place in places:
        if place.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            place.set_ylabel(sheet.upright(axes["ylabel"]))
    sheet.legend(figure, [handles[label] for label in labels], list(labels))
    return figure


def scored(runs: Sequence[Run], metric: str) -> str:
    """What numbers are, for an axis: ``test accuracy (%), before local training``, or
    of held-out samples ``validation accuracy …``.
    """
    found = [named(run, metric) for run in runs]
    measure = found[0].measure
    if measure is None:
        name = found[0].name
        shown = name.number if name.column == RECORDED else metric
        return shown.replace("_", " ")
    unit = f" ({measure.unit})" if measure.unit else ""
    kind = (
        ""
        if measure.kind in ("weighted", "mean")
        else f", {measure.kind.replace('_', ' ')}"
    )
    columns = {models_of(name.column) for name in found}
    column = next(iter(columns))
    moment = MOMENTS.get(column, column)
    moment = moment if len(columns) == 1 else "each method's own models"
    samples = "validation" if is_held_out(found[0].column) else "test"
    return f"{samples} {measure.score}{unit}{kind}, {moment}"


def moment(runs: Sequence[Run], at: str) -> str:
    """In which of the rounds numbers are read, for the command: ``best of the rounds,
    by test samples``.
    """
    best_by = " or ".join(sorted({run.summary.best_by for run in runs}))
    return f"{at} of the rounds" + (f", by {best_by} samples" if at == "best" else "")


def repeated(lines: Sequence[Line]) -> str:
    """Of how many runs lines are, for the command: ``mean ± standard deviation over 3
    seeds``.
    """
    counts = sorted({line.runs for line in lines})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        "one run each"
        if counts == [1]
        else f"mean ± standard deviation over {seeds} seeds"
    )
