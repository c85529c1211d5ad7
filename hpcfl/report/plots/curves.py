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
    seeds,
    setting_of,
    varied_keys,
)
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import Line
from hpcfl.report.plots.base import Sheet, literal, whole_numbers
from hpcfl.report.reading import named, read_at, refuse_unknown, series, value
from hpcfl.report.series import (
    AXES,
    deviation,
    drawable,
    over,
    refuse_packed,
    thinned,
)
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECADES = 100  # keys whose values differ by this factor are drawn on a logarithmic axis


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    x: str = "rounds",
    metric: str = "",
    at: str = "",
    group: Sequence[str] = (),
    base: float | None = None,
) -> "Figure":
    """A line for each method, or other ``group``; a panel for each data set and
    partition.

    at: of a key on the x axis, where the score is read in a run. base: a value of this
    key; what is drawn is the gain over the run of the same seed that has it.
    """
    if x in AXES and (at or base is not None):
        given = f"--at {at}" if at else f"--base {base:g}"
        raise UserError(
            f"{given}: a curve over {x} has all rounds; {given.split()[0]} is for --x KEY"
        )
    metric = metric or runs[0].metric
    varied = varied_keys(runs)
    if x not in AXES and x not in varied:
        hint = plugins.nearest(
            x, [*AXES, *(key for key in varied if _numeric(runs, key))]
        )
        raise UserError(f"--x {x}: is no key in which these runs differ{hint}")
    arranged = arrange(
        runs,
        [*group, x] if group and x in varied else group,
        unfinished=x in AXES,
        options="--group",
    )
    refuse_unknown(arranged.runs, metric)
    if x in AXES:
        for run in arranged.runs:
            refuse_packed(run)
        _refuse_unrecorded(arranged.runs, metric, x)
        panels = over_cost(arranged.repetitions, metric, x)
    else:
        panels = against(arranged, metric, x, at or "best", base)
    lines = [line for of_panel in panels.values() for line in of_panel]
    if not any(len(line.x) for line in lines):
        raise UserError(f"--metric {metric}: no round has it in all repetitions")
    sheet.notes += [*arranged.notes, _lines.repeated(lines)]
    if x not in AXES:
        sheet.notes.append(_lines.moment(arranged.runs, read_at(metric, at or "best")))
    measure = named(runs[0], metric).measure
    ylabel = _lines.scored(arranged.runs, metric)
    if base is not None:
        ylabel = f"gain over {literal(x)} = {base:g}: {ylabel}"
    return draw(sheet, panels if len(panels) > 1 else {"": lines}, measure, x, ylabel)


def draw(
    sheet: Sheet,
    panels: Mapping[str, Sequence[Line]],
    measure: Measure | None,
    x: str,
    ylabel: str,
) -> "Figure":
    """Lines in panels by title; ``x``: one of AXES, or a key of the configuration."""
    from matplotlib.ticker import EngFormatter

    xlabel = AXES[x][0] if x in AXES else literal(x)
    figure = _lines.draw(sheet, panels, measure, xlabel=xlabel, ylabel=ylabel)
    lines = [line for of_panel in panels.values() for line in of_panel]
    places = np.concatenate([line.x for line in lines])
    logarithmic = (
        x not in AXES and places.min() > 0 and places.max() / places.min() >= DECADES
    )
    for axes in figure.axes:
        if logarithmic:
            axes.set_xscale("log")
        elif (places == places.round()).all():
            whole_numbers(axes.xaxis)
        if x == "floats":
            axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def over_cost(
    repetitions: Mapping[tuple[str, str], Sequence[Run]], metric: str, x: str = "rounds"
) -> dict[str, list[Line]]:
    """The lines of runs over rounds or what these cost, by the label of their data.

    Args:
        repetitions: The runs that are averaged, by the labels of their row and of their
            data.
        metric: What the numbers are; see ``reading.named``.
        x: One of AXES.
    """
    panels: dict[str, list[Line]] = {}
    for (row, column), runs in repetitions.items():
        numbers = [_factor(run, metric) * series(run, metric) for run in runs]
        places = [AXES[x][1](run, named(run, metric).column) for run in runs]
        curve = over(runs, places, numbers)
        curve = curve.at(thinned(curve.mean))
        method = _lines.method_of(runs[0])
        line = Line(row, method, curve.x, curve.mean, curve.std, curve.runs)
        panels.setdefault(column, []).append(line)
    return panels


def against(
    arranged: Arrangement, metric: str, key: str, at: str, base: float | None = None
) -> dict[str, list[Line]]:
    """The lines of what came out over the values of a key, by the label of what else
    the data are.

    base: as for ``plugin``.
    """
    # by row and column, place on the axis, and seeds
    points: dict[tuple[str, str], dict[float, dict[str, float]]] = {}
    methods = {}
    for run, setting in arranged.placed:
        if not _is_number(setting.get(key)):
            raise UserError(
                f"--x {key}: {setting.get(key)!r} in {run.folder} is not a number"
            )
        row, column = (
            label(setting, [other for other in keys if other != key])
            for keys in (arranged.down, arranged.across)
        )
        methods[row] = _lines.method_of(run)
        number = _factor(run, metric) * value(run, metric, at).value
        by_place = points.setdefault((row, column), {})
        by_seeds = by_place.setdefault(setting[key], {})
        by_seeds[repr(seeds(setting))] = number
    panels: dict[str, list[Line]] = {}
    for (row, column), of_seeds in points.items():
        gains = _gains(of_seeds, key, base)
        places = sorted(gains)
        numbers = [list(gains[place].values()) for place in places]
        line = Line(
            row,
            methods[row],
            np.array(places, float),
            drawable(np.array([np.mean(of_place) for of_place in numbers])),
            drawable(np.array([deviation(np.array(one)) for one in numbers])),
            max(map(len, numbers)),
        )
        panels.setdefault(column, []).append(line)
    return panels


def _gains(
    of_seeds: Mapping[float, Mapping[str, float]], key: str, base: float | None
) -> Mapping[float, Mapping[str, float]]:
    """Numbers by value and seeds, less those of the ``base``, where one is asked for.
    Raises UserError.
    """
    if base is None:
        return of_seeds
    if any(
        set(numbers) != set(of_seeds.get(base, {})) for numbers in of_seeds.values()
    ):
        raise UserError(
            f"--base {base:g}: there are not runs of all the same seeds with {key} = {base:g}"
        )
    return {
        place: {seed: number - of_seeds[base][seed] for seed, number in numbers.items()}
        for place, numbers in of_seeds.items()
    }


def _refuse_unrecorded(runs: Sequence[Run], metric: str, x: str) -> None:
    """Raise UserError where a run does not say what its rounds cost."""
    for run in runs:
        places = AXES[x][1](run, named(run, metric).column)
        if np.isnan(places).all():
            raise UserError(f"{run.folder}: --x {x}: was not recorded")


def _numeric(runs: list[Run], key: str) -> bool:
    """Whether a key has a number in all runs."""
    return all(_is_number(setting_of(run).get(key)) for run in runs)


def _is_number(content: object) -> bool:
    return isinstance(content, int | float) and not isinstance(content, bool)


def _factor(run: Run, metric: str) -> int:
    measure = named(run, metric).measure
    return measure.factor if measure else 1
