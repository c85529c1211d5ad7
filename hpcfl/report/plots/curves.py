"""A score over rounds, over the seconds or floats that they cost, or over a key of the configuration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import repetitions
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import Line, over
from hpcfl.report.plots.base import Sheet, literal, whole_numbers
from hpcfl.report.reading import named, refuse_unknown, series, value
from hpcfl.report.repetitions import Placed, label
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECADES = 100  # keys whose values differ by this factor are drawn on a logarithmic axis
LABELS = {"rounds": "round", "seconds": "seconds", "floats": "floats to and from a client that takes part"}


def plugin(runs: list[Run], sheet: Sheet, *, x: str = "rounds", metric: str = "", at: str = "",
           group: Sequence[str] = ()) -> "Figure":
    """A line for each method, or other ``group``; a panel for each data set and partition.

    at: of a key on the x axis, where the score is read in a run.
    """
    if x in LABELS and at:
        raise UserError(f"--at {at}: a curve over {x} has all rounds; --at is for --x KEY")
    from matplotlib.ticker import EngFormatter

    metric = metric or runs[0].metric
    varied = repetitions.varied(runs)
    if x not in LABELS and x not in varied:
        hint = plugins.nearest(x, [*LABELS, *varied])
        raise UserError(f"--x {x}: is no key in which these runs differ{hint}")
    placed = repetitions.placed(runs, [*group, x] if group and x in varied else group,
                                unfinished=x in LABELS, options="--group")
    refuse_unknown(placed.runs, metric)
    panels = over_cost(placed, metric, x) if x in LABELS else against(placed, metric, x, at or "best")
    lines = [line for of_panel in panels.values() for line in of_panel]
    if not any(len(line.x) for line in lines):
        raise UserError(f"--metric {metric}: no round has it in all repetitions")
    sheet.notes += [*placed.notes, _lines.repeated(lines)]
    figure = _lines.draw(sheet, panels if len(panels) > 1 else {"": lines}, named(runs[0], metric).measure,
                         xlabel=LABELS.get(x, literal(x)), ylabel=_lines.scored(placed.runs, metric))
    for axes in figure.axes:
        places = np.concatenate([line.x for line in lines])
        if x not in LABELS and places.min() > 0 and places.max() / places.min() >= DECADES:
            axes.set_xscale("log")
        elif (places == places.round()).all():
            whole_numbers(axes.xaxis)
        if x == "floats":
            axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def over_cost(placed: Placed, metric: str, x: str = "rounds") -> dict[str, list[Line]]:
    """The lines of runs over rounds or what these cost, by the label of their data."""
    panels: dict[str, list[Line]] = {}
    for (row, column), runs in placed.cells.items():
        numbers = [_factor(run, metric) * series(run, metric) for run in runs]
        panels.setdefault(column, []).append(
            over(row, runs, [spent(run, x, named(run, metric).column) for run in runs], numbers))
    return panels


def against(placed: Placed, metric: str, key: str, at: str) -> dict[str, list[Line]]:
    """The lines of what came out over the values of a key, by the label of what else the data are."""
    points: dict[tuple[str, str], dict[float, list[float]]] = {}
    methods = {}
    for run, setting in zip(placed.runs, placed.settings, strict=True):
        if isinstance(setting.get(key), bool) or not isinstance(setting.get(key), int | float):
            raise UserError(f"--x {key}: {setting.get(key)!r} in {run.folder} is not a number")
        row, column = (label(setting, [one for one in keys if one != key])
                       for keys in (placed.down, placed.across))
        methods[row] = _lines.method_of(run)
        number = _factor(run, metric) * value(run, metric, at).value
        points.setdefault((row, column), {}).setdefault(setting[key], []).append(number)
    panels: dict[str, list[Line]] = {}
    for (row, column), found in points.items():
        keys = sorted(found)
        panels.setdefault(column, []).append(Line(
            row, methods[row], np.array(keys, float), np.array([np.mean(found[one]) for one in keys]),
            np.array([np.std(found[one]) for one in keys]), max(map(len, found.values()))))
    return panels


def spent(run: Run, x: str, column: str) -> np.ndarray:
    """What a run had cost when the models of a column were there, [T] by round: its number, seconds, floats.

    Floats are those to and from a client that takes part in every round. Models before local training are
    there when the rounds before are over.
    """
    results = run.results
    if x == "rounds":
        return results.rounds.astype(float)
    try:
        if x == "seconds":
            cost = np.nan_to_num(results.values["seconds/round"])
        else:
            up = results.values["clients/floats_up"]
            known = np.isfinite(up)
            cost = (np.nan_to_num(results.values["floats_down"])
                    + np.where(known, up, 0).sum(axis=1) / np.maximum(1, known.sum(axis=1)))
    except KeyError as missing:
        raise UserError(f"{run.folder}: --x {x}: {missing.args[0]} was not recorded") from None
    total: np.ndarray = np.cumsum(cost)
    return total if column == "post" else total - cost


def _factor(run: Run, metric: str) -> int:
    measure = named(run, metric).measure
    return measure.factor if measure else 1
