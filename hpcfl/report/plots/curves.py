"""Curves of a metric over rounds, over cost (seconds, floats, bits) or over a key."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pandas import DataFrame, Series, concat

from hpcfl.errors import UserError, suggest
from hpcfl.report import lines
from hpcfl.report.arrangement import (
    Arrangement,
    arrange,
    find_setting,
    find_varied_keys,
    make_label,
)
from hpcfl.report.metric_values import (
    Reading,
    find_virtual_seconds,
    read_series,
    read_value,
    refuse_packed,
    resolve_metric,
    resolve_recorded,
)
from hpcfl.report.sheet import Sheet, set_whole_ticks
from hpcfl.report.text import shorten
from hpcfl.scores.metric_names import (
    FLOATS_UP,
    RECORDED,
    SECONDS,
    Measure,
    MetricName,
    is_trained,
)
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOAT_BITS = 32
DECADES = 100  # ratio of a key's values from which its axis is logarithmic


def _list_rounds(run: Run, column: str) -> np.ndarray:
    """Return the number of finished rounds when the models of a column existed, [T].

    Models after local training count their own round, other models do not.
    """
    trained = run.results.played & is_trained(column)
    rounds: np.ndarray = np.where(trained, run.results.rounds, run.results.rounds - 1)
    return rounds


def _sum_seconds(run: Run, column: str) -> np.ndarray:
    """Return the seconds until the models of a column existed, [T]."""
    return _sum_cost(run.results.get_series(MetricName("round", SECONDS)), column)


def _sum_floats(run: Run, column: str) -> np.ndarray:
    """Return the floats to and from a client until the models existed, [T]."""
    down = run.results.get_series(MetricName("floats_down"))
    travelled: np.ndarray = _sum_cost(down, column) + _sum_cost(
        _read_floats_up(run), column
    )
    return travelled


def _sum_bits(run: Run, column: str) -> np.ndarray:
    """Return the bits to and from a client until the models existed, [T]."""
    down = FLOAT_BITS * run.results.get_series(MetricName("floats_down"))
    # The mean over the cohort excludes clients that are only scored.
    of_cohort = run.results.get_series(MetricName("bits_down", RECORDED))
    down = np.where(np.isnan(of_cohort), down, of_cohort)
    up = FLOAT_BITS * _read_floats_up(run)
    travelled: np.ndarray = _sum_cost(down, column) + _sum_cost(up, column)
    return travelled


def _read_floats_up(run: Run) -> np.ndarray:
    """Return the mean number of floats that a client sent in each round, [T]."""
    recorded = run.results.values
    rounds = range(len(run.results.rounds))
    up = np.full(len(rounds), np.nan)
    if FLOATS_UP in recorded.columns:
        # The mean is over senders; clients that sent nothing are NaN.
        sent = Series(recorded.columns[FLOATS_UP]).groupby(recorded.entry_rounds)
        up = sent.mean().reindex(rounds).fillna(0.0).to_numpy()
    return up


def _sum_cost(cost: np.ndarray, column: str) -> np.ndarray:
    """Return the cumulative cost until the models of a column existed.

    Args:
        cost: Cost of each round, ``[T]``.
        column: Column of models. Models after local training include the cost of their
            own round; other models exist as soon as the previous round ends.

    Returns:
        Cumulative cost, ``[T]``; NaN if the cost was never recorded.
    """
    if np.isnan(cost).all():
        return cost
    total: np.ndarray = np.nancumsum(cost.astype(float))
    if not is_trained(column):
        total -= np.nan_to_num(cost)
    return total


# By name of an axis its label and a function that returns the positions [T] of a run's
# rounds on the axis, for the models of a column.
AXES: dict[str, tuple[str, Callable[[Run, str], np.ndarray]]] = {
    "rounds": ("rounds", _list_rounds),
    "seconds": ("seconds, scoring included", _sum_seconds),
    "virtual": ("seconds of virtual time", find_virtual_seconds),
    "floats": (
        "floats to and from a client that takes part in all rounds",
        _sum_floats,
    ),
    "bits": ("bits to and from a client that takes part in all rounds", _sum_bits),
}


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    x: str = "rounds",
    metric: str = "",
    at: str = "",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw a line for each method or other ``group``, and a panel for each data set and
    partition.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        x: Axis of AXES, or a numeric key in which the runs differ.
        metric: Name of the metric on the y axis; default the primary metric.
        at: Rounds at which the metric is read if ``x`` is a key: "best", "last" or
            "tail".
        group: Keys that define a line; default the method.

    Raises:
        UserError: If the axis or the metric is unknown or was not recorded.
    """
    reading = Reading(metric, at or "best").resolve(runs)
    metric = reading.metric
    if x in AXES:
        if at:
            raise UserError(f"--at: needs --x KEY; a curve over {x} shows all rounds")
        arranged = arrange(runs, group, unfinished=True, options="--group")
        for run in arranged.runs:
            refuse_packed(run)
            places = _find_places(run, metric, x)
            if places.size and np.isnan(places).all():
                raise UserError(f"{run.folder}: --x {x}: was not recorded")
        drawn = list_over_axis(arranged, metric, x)
        sheet.notes += explain_limits(arranged)
    else:
        _refuse_unvaried(runs, x)
        arranged = arrange(runs, [*group, x] if group else (), options="--group")
        drawn = list_over_key(arranged, reading, x)
        sheet.notes.append(lines.name_rounds(arranged.runs, reading.at))
    if drawn.empty:
        raise UserError(f"--metric {metric}: no round has it in all repetitions")
    sheet.notes += [*arranged.notes, lines.count_repetitions(drawn)]
    ylabel = lines.name_scores(arranged.runs, metric)
    measure = resolve_recorded(runs, metric).measure
    return draw(sheet, drawn, measure, x=x, ylabel=ylabel)


def draw(
    sheet: Sheet,
    drawn: DataFrame,
    measure: Measure | None,
    *,
    x: str,
    ylabel: str,
) -> "Figure":
    """Draw lines in panels.

    Args:
        sheet: Sheet to draw on.
        drawn: Lines, as ``lines.average`` returns them.
        measure: Measure on the y axis; None if the metric is not a score.
        x: Axis of AXES, or a key of the configuration.
        ylabel: Label of the y axis.
    """
    from matplotlib.ticker import EngFormatter

    if drawn["panel"].nunique() == 1:
        drawn = drawn.assign(panel="")
    xlabel = AXES[x][0] if x in AXES else shorten(x)
    figure = lines.draw(sheet, drawn, measure, xlabel=xlabel, ylabel=ylabel)
    low, high = drawn["x"].min(), drawn["x"].max()
    for axes in figure.axes:
        if x not in AXES and high >= DECADES * low > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        elif (drawn["x"] == drawn["x"].round()).all():
            set_whole_ticks(axes.xaxis)
        if x == "floats":
            axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def list_over_axis(arranged: Arrangement, metric: str, x: str = "rounds") -> DataFrame:
    """Return a metric of runs over one of AXES as lines, see ``lines.average``."""
    numbers = []
    for position, placed in enumerate(arranged.placed):
        run = placed.run
        of_run = {
            "panel": placed.column,
            "row": placed.row,
            "method": run.summary.method,
            "run": position,
            "place": run.results.rounds,
            "x": _find_places(run, metric, x),
            "y": resolve_metric(run, metric).factor * read_series(run, metric),
        }
        numbers.append(DataFrame(of_run))
    return lines.average(concat(numbers))


def explain_limits(arranged: Arrangement) -> list[str]:
    """Return a line on each complete curve that ends before others."""
    most = max(run.config["rounds"] for run in arranged.runs)
    shorter = {
        placed.row: placed.run.config["rounds"]
        for placed in arranged.placed
        if placed.run.summary.finished and placed.run.config["rounds"] < most
    }
    return [
        f"{row} ends at round {rounds}, by its configuration"
        for row, rounds in shorter.items()
    ]


def list_over_key(arranged: Arrangement, reading: Reading, key: str) -> DataFrame:
    """Return a metric of runs over the values of a key as lines, see ``lines.average``."""
    metric, numbers = reading.metric, []
    for run, setting, *_ in arranged.placed:
        place = _parse_number(setting.get(key))
        if place is None:
            raise UserError(
                f"--x {key}: {setting.get(key)!r} in {run.folder} is not a number"
            )
        number = {
            "panel": make_label(
                setting, [one for one in arranged.across if one != key]
            ),
            "row": make_label(setting, [one for one in arranged.down if one != key]),
            "method": run.summary.method,
            "x": place,
            "y": resolve_metric(run, metric).factor
            * read_value(run, metric, reading.at).value,
        }
        numbers.append(number)
    frame = DataFrame(numbers).sort_values("x", kind="stable")
    # The repetitions differ between values of the key.
    drawn = frame.groupby(["panel", "row", "method", "x"], sort=False)["y"].agg(
        mean=lambda of_place: of_place.mean(skipna=False), std="std", runs="size"
    )
    known = drawn["mean"].abs() < lines.BEYOND
    return drawn[known].fillna({"std": 0.0}).reset_index()


def _refuse_unvaried(runs: list[Run], key: str) -> None:
    """Raise UserError if the runs do not differ in a key."""
    varied = find_varied_keys(runs)
    if key not in varied:
        first = find_setting(runs[0])
        numeric = [one for one in varied if _parse_number(first.get(one)) is not None]
        hint = suggest(key, [*AXES, *numeric])
        raise UserError(f"--x {key}: these runs do not differ in such a key{hint}")


def _find_places(run: Run, metric: str, x: str) -> np.ndarray:
    """Return the positions of a run's rounds on one of AXES, [T]."""
    return AXES[x][1](run, resolve_metric(run, metric).column)


def _parse_number(content: object) -> float | None:
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    return float(content)
