"""Lines with a band: means and sample standard deviations over the repetitions of an
experiment.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pandas import DataFrame

from hpcfl.report.metric_values import At, name_measure, resolve_metric
from hpcfl.report.sheet import Sheet, choose_looks
from hpcfl.scores.metric_names import RECORDED, Measure, is_held_out, strip_held_out
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = 8  # approximate number of marks along a line
MANY = 12  # a panel with more lines is higher, and has paler bands
MOMENTS = {"pre": "before local training", "post": "after local training"}
# Numbers from this size on, such as those of a model that diverges, are not drawn.
BEYOND = 1e100


def average(numbers: DataFrame) -> DataFrame:
    """Return the lines of a figure: at each place the mean over repetitions, of the
    places at which every repetition of a line has a number.

    Args:
        numbers: A row for each number with ``panel``, ``row``, the label of a line,
            ``method``, ``run``, ``place``, ``x`` and ``y``.

    Returns:
        A row for each place of a line, with ``panel``, ``row``, ``method``, ``x``,
        ``mean``, ``std`` (0 for a single repetition) and ``runs``.
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
    shared: bool = True,
) -> "Figure":
    """Draw lines in panels, with one legend for all.

    Args:
        sheet: The paper to draw on.
        lines: As from ``average``.
        measure: Of the numbers on the y axis; the best line by it is first in the
            legend.
        xlabel: The label of each x axis.
        ylabel: The label of the y axes of the first column.
        shared: Whether all panels have the same y axis.
    """
    panels = dict(list(lines.groupby("panel", sort=False)))
    most = max(panel["row"].nunique() for panel in panels.values())
    height = 3.8 if most > MANY else 0
    figure, places = sheet.panels(len(panels), height=height, sharey=shared)
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
    """Return the lines' labels, that with the best end first."""
    ends = lines.groupby(["panel", "row"], sort=False)["mean"].last()
    ranks = ends * (measure.rank(1.0) if measure else 1.0)
    in_order = ranks.sort_values(ascending=False, kind="stable")
    return list(in_order.index.get_level_values("row").unique())


def name_scores(runs: Sequence[Run], metric: str) -> str:
    """Return an axis' label: ``test accuracy (%), before local training``, or of
    held-out samples ``validation accuracy …``.
    """
    metrics = [resolve_metric(run, metric) for run in runs]
    name, measure = metrics[0]
    if measure is None:
        return (name.number if name.column == RECORDED else metric).replace("_", " ")
    samples = "validation" if is_held_out(name.column) else "test"
    columns = {strip_held_out(of_run.column) for of_run in metrics}
    models = "each method's own models"
    if len(columns) == 1:
        [column] = columns
        models = MOMENTS.get(column, column)
    return f"{samples} {name_measure(measure)}{measure.label_end}, {models}"


def name_rounds(runs: Sequence[Run], at: At) -> str:
    """Return a note on the rounds in which numbers are read: ``best of the rounds, by
    test samples``.
    """
    if at != "best":
        return f"{at} of the rounds"
    best_by = sorted({run.summary.best_by for run in runs})
    return f"best of the rounds, by {' or '.join(best_by)} samples"


def count_repetitions(lines: DataFrame) -> str:
    """Return a note on the repetitions: ``mean ± sample standard deviation over 3
    seeds``.
    """
    least, most = lines["runs"].min(), lines["runs"].max()
    if most == 1:
        return "one run each"
    seeds = f"{most}" if least == most else f"{least} to {most}"
    return f"mean ± sample standard deviation over {seeds} seeds"
