"""Lines with bands: means and sample standard deviations over repetitions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pandas import DataFrame

from hpcfl.report.metric_values import At, resolve_metric, resolve_recorded
from hpcfl.report.sheet import Sheet, choose_looks
from hpcfl.scores.metric_names import RECORDED, Measure, is_held_out, strip_held_out
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = 8  # approximate number of marks along a line
MANY = 12  # a panel with more lines is taller and has paler bands
MOMENTS = {"pre": "before local training", "post": "after local training"}
# Larger absolute values, such as those of a diverged model, are not drawn.
BEYOND = 1e100


def average(numbers: DataFrame) -> DataFrame:
    """Return the lines of a figure: means over repetitions.

    A line has the places at which all of its repetitions have a number.

    Args:
        numbers: Frame with a row for each number and the columns ``panel``, ``row``
            (label of the line), ``method``, ``run``, ``place``, ``x`` and ``y``.

    Returns:
        Frame with a row for each place of a line and the columns ``panel``, ``row``,
        ``method``, ``x``, ``mean``, ``std`` (0 for a single repetition) and ``runs``.
    """
    line = ["panel", "row", "method"]
    numbers = numbers.assign(runs=numbers.groupby(line)["run"].transform("nunique"))
    is_drawable = numbers[["x", "y"]].abs().lt(BEYOND).all(axis=1)
    lines = (
        numbers[is_drawable]
        .groupby([*line, "runs", "place"], sort=False)
        .agg(x=("x", "mean"), mean=("y", "mean"), std=("y", "std"), known=("y", "size"))
        .reset_index()
    )
    return lines[lines["known"] == lines["runs"]].fillna({"std": 0.0})


def draw(
    sheet: Sheet,
    lines: DataFrame,
    measure: Measure | None,
    *,
    xlabel: str,
    ylabel: str,
    shares_y: bool = True,
) -> "Figure":
    """Draw lines in panels with one legend for all panels.

    Args:
        sheet: Sheet to draw on.
        lines: Lines, as ``average`` returns them.
        measure: Measure on the y axis; the legend begins with the line that ends best.
        xlabel: Label of each x axis.
        ylabel: Label of the y axes in the first column.
        shares_y: Whether all panels have the same y axis.
    """
    panels = dict(list(lines.groupby("panel", sort=False)))
    most = max(panel["row"].nunique() for panel in panels.values())
    height = 3.8 if most > MANY else 0
    figure, places = sheet.panels(len(panels), height=height, sharey=shares_y)
    looks = choose_looks(dict(zip(lines["row"], lines["method"], strict=True)))
    handles = {}
    for place, (title, panel) in zip(places, panels.items(), strict=True):
        rows = panel.groupby("row", sort=False)
        for position, (row, line) in enumerate(rows):
            look = looks[row]
            step = max(1, len(line) // MARKS)
            [handles[row]] = place.plot(
                line["x"],
                line["mean"],
                color=look.color,
                marker=look.marker,
                linestyle=look.linestyle,
                markevery=(position % step, step),
            )
            if line["runs"].max() > 1:
                low, high = line["mean"] - line["std"], line["mean"] + line["std"]
                opacity = 0.15 if most <= MANY else 0.04
                place.fill_between(
                    line["x"],
                    low,
                    high,
                    color=look.color,
                    alpha=opacity,
                    linewidth=0,
                )
        place.set(title=sheet.title(title), xlabel=xlabel)
        if place.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            place.set_ylabel(sheet.upright(ylabel))
    labels = _sort_labels(lines, measure)
    sheet.legend(figure, [handles[label] for label in labels], labels)
    return figure


def _sort_labels(lines: DataFrame, measure: Measure | None) -> list[str]:
    """Return the labels of the lines, sorted by their last values, best first."""
    ends = lines.groupby(["panel", "row"], sort=False)["mean"].last()
    oriented = ends * (measure.orient(1.0) if measure else 1.0)
    in_order = oriented.sort_values(ascending=False, kind="stable")
    return list(in_order.index.get_level_values("row").unique())


def name_scores(runs: Sequence[Run], metric: str) -> str:
    """Return the label of an axis, such as ``test accuracy (%), before local training``.

    For held-out samples the label begins with ``validation``.
    """
    name, measure = resolve_recorded(runs, metric)
    if measure is None:
        return (name.number if name.column == RECORDED else metric).replace("_", " ")
    samples = "validation" if is_held_out(name.column) else "test"
    found = {resolve_metric(run, metric).column for run in runs}
    columns = set(map(strip_held_out, found)) - {""}
    models = "each method's own models"
    if len(columns) == 1:
        [column] = columns
        models = MOMENTS.get(column, column)
    return f"{samples} {measure.name}{measure.label_end}, {models}"


def name_rounds(runs: Sequence[Run], at: At) -> str:
    """Return a note on the rounds at which numbers are read, such as ``best of the
    rounds, by test samples``.
    """
    if at != "best":
        return f"{at} of the rounds"
    best_by = sorted({run.summary.best_by for run in runs})
    return f"best of the rounds, by {' or '.join(best_by)} samples"


def count_repetitions(lines: DataFrame) -> str:
    """Return a note on the number of repetitions, such as ``mean ± sample standard
    deviation over 3 seeds``.
    """
    least, most = lines["runs"].min(), lines["runs"].max()
    if most == 1:
        return "one run each"
    seeds = f"{most}" if least == most else f"{least} to {most}"
    return f"mean ± sample standard deviation over {seeds} seeds"
