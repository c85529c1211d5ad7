"""A score over rounds, over the seconds or floats that they cost, or over a key of the
configuration.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report.arrangement import (
    Arrangement,
    arrange,
    label,
    setting_of,
    varied_keys,
)
from hpcfl.report.metric_values import (
    read_at,
    refuse_unknown,
    resolve_metric,
    series,
    value,
)
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import Line
from hpcfl.report.plots.base import Sheet, literal, whole_numbers
from hpcfl.report.series import (
    AXES,
    deviation,
    drawable,
    over,
    refuse_packed,
    thinned,
)
from hpcfl.scores.metric_names import Measure
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECADES = 100  # keys whose values differ by this factor are drawn on a logarithmic axis
Panels = dict[str, list[Line]]  # by the label of the data


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    x: str = "rounds",
    metric: str = "",
    at: str = "",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw a line for each method, or other ``group``; a panel for each data set and
    partition.

    at: of a key on the x axis, where the score is read in a run.
    """
    metric = metric or runs[0].metric
    if x in AXES:
        if at:
            raise UserError(f"--at: is for --x KEY; a curve over {x} has all rounds")
        arranged = arrange(runs, group, unfinished=True, options="--group")
        refuse_unknown(arranged.runs, metric)
        _refuse_unrecorded(arranged.runs, metric, x)
        panels = over_cost(arranged.repetitions, metric, x)
    else:
        _refuse_unvaried(runs, x)
        arranged = arrange(runs, [*group, x] if group else (), options="--group")
        refuse_unknown(arranged.runs, metric)
        panels = over_key(arranged, metric, x, at or "best")
        moment = _lines.moment(arranged.runs, read_at(metric, at or "best"))
        sheet.notes.append(moment)
    lines = [line for of_panel in panels.values() for line in of_panel]
    if not any(len(line.x) for line in lines):
        raise UserError(f"--metric {metric}: no round has it in all repetitions")
    sheet.notes += [*arranged.notes, _lines.repeated(lines)]
    ylabel = _lines.scored(arranged.runs, metric)
    measure = resolve_metric(runs[0], metric).measure
    return draw(sheet, panels if len(panels) > 1 else {"": lines}, measure, x, ylabel)


def draw(
    sheet: Sheet,
    panels: Mapping[str, Sequence[Line]],
    measure: Measure | None,
    x: str,
    ylabel: str,
) -> "Figure":
    """Draw lines in panels by title; ``x``: one of AXES, or a key of the configuration."""
    from matplotlib.ticker import EngFormatter

    xlabel = AXES[x][0] if x in AXES else literal(x)
    figure = _lines.draw(sheet, panels, measure, xlabel=xlabel, ylabel=ylabel)
    places = np.concatenate([line.x for lines in panels.values() for line in lines])
    spread = x not in AXES and places.max() >= DECADES * places.min() > 0
    for axes in figure.axes:
        if spread:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        elif (places == places.round()).all():
            whole_numbers(axes.xaxis)
        if x == "floats":
            axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def over_cost(
    repetitions: Mapping[tuple[str, str], Sequence[Run]], metric: str, x: str = "rounds"
) -> Panels:
    """Return the lines of runs over rounds or what these cost.

    Args:
        repetitions: The runs that are averaged, by the labels of their row and of their
            data.
        metric: What the numbers are; see ``metric_values.resolve_metric``.
        x: One of AXES.
    """
    panels: Panels = {}
    for (row, column), runs in repetitions.items():
        numbers = [_factor(run, metric) * series(run, metric) for run in runs]
        curve = over(runs, [_places(run, metric, x) for run in runs], numbers)
        curve = curve.select(thinned(curve.mean))
        method = _lines.method_of(runs[0])
        line = Line(row, method, curve.x, curve.mean, curve.std, curve.runs)
        panels.setdefault(column, []).append(line)
    return panels


def over_key(arranged: Arrangement, metric: str, key: str, at: str) -> Panels:
    """Return the lines of results over the values of a key."""
    # by column, row and method, then by place on the axis
    found: dict[tuple[str, str, str], dict[float, list[float]]] = {}
    for run, setting in arranged.placed:
        content = setting.get(key)
        place = _number(content)
        if place is None:
            raise UserError(f"--x {key}: {content!r} in {run.folder} is not a number")
        row = label(setting, [one for one in arranged.down if one != key])
        column = label(setting, [one for one in arranged.across if one != key])
        of_line = found.setdefault((column, row, _lines.method_of(run)), {})
        number = _factor(run, metric) * value(run, metric, at).value
        of_line.setdefault(place, []).append(number)
    panels: Panels = {}
    for (column, row, method), of_line in found.items():
        places = sorted(of_line)
        cells = [np.array(of_line[place]) for place in places]
        line = Line(
            row,
            method,
            np.array(places, float),
            drawable(np.array([cell.mean() for cell in cells])),
            drawable(np.array([deviation(cell) for cell in cells])),
            max(map(len, cells)),
        )
        panels.setdefault(column, []).append(line)
    return panels


def _refuse_unrecorded(runs: Sequence[Run], metric: str, x: str) -> None:
    """Raise UserError where a run lacks the cost of its rounds."""
    for run in runs:
        refuse_packed(run)
        if np.isnan(_places(run, metric, x)).all():
            raise UserError(f"{run.folder}: --x {x}: was not recorded")


def _refuse_unvaried(runs: list[Run], key: str) -> None:
    """Raise UserError where runs do not differ in a key."""
    varied = varied_keys(runs)
    if key not in varied:
        first = setting_of(runs[0])
        numeric = [one for one in varied if _number(first.get(one)) is not None]
        hint = plugins.nearest(key, [*AXES, *numeric])
        raise UserError(f"--x {key}: is no key in which these runs differ{hint}")


def _places(run: Run, metric: str, x: str) -> np.ndarray:
    """Return the places of a run's rounds along one of AXES, [T]."""
    return AXES[x][1](run, resolve_metric(run, metric).column)


def _number(content: object) -> float | None:
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return float(content)


def _factor(run: Run, metric: str) -> int:
    measure = resolve_metric(run, metric).measure
    return measure.factor if measure else 1
