"""Figures and tables of one data set and partition, for a page."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcfl.errors import UserError
from hpcfl.report import comparison, figures, sweep_table
from hpcfl.report.arrangement import Arrangement, Placed
from hpcfl.report.comparison import Reference
from hpcfl.report.grid import MISSING, Sheet
from hpcfl.report.plots import _clients, _lines, clients, curves, gains, partition
from hpcfl.report.plots import base as paper
from hpcfl.report.plots._clients import Rows
from hpcfl.report.series import AXES
from hpcfl.report.style import Look
from hpcfl.report.sweep_table import Reading
from hpcfl.report.text import duration
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 10.0  # inches of a figure, which a wide screen shows half as large again
CLIENTS = 100  # of a partition that are shown
# The methods with which others are compared, the first that a column has.
ALONE = "local"
REFERENCES = (ALONE, "fedavg")
AT = "best"  # where clients are read, as by default in tables
# Summaries over clients and their headings.
KINDS = {
    "weighted": "of all samples",
    "mean": "mean over clients",
    "std": "std over clients",
    "worst_tenth": "worst tenth of clients",
}
# The ids that matplotlib gives to all parts of a figure; nothing refers to them.
PART_ID = re.compile(r' id="(?!C\d)[A-Za-z][\w.]*_\d+"')


@dataclass(frozen=True)
class Picture:
    """A figure as SVG, with the heading and the caption that it has on the page."""

    heading: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Chapter:
    """Results on one data set and partition, a column of the tables.

    compared: the gains beside a reference; a text where there are none.
    """

    label: str
    compared: Sheet | str
    pictures: list[Picture]
    tables: list[Sheet]
    notes: list[str]


def make(
    arranged: Arrangement, column: str, looks: Mapping[str, Look], name: str
) -> Chapter:
    """Return the chapter of one column, its rows with the best first.

    Call it within ``figures.house_style``. looks: of all rows of the page, by label.
    name: makes the ids of the figures unique on the page.
    """
    rows = best_first(arranged.column(column))
    runs = [run for of_row in rows.values() for run in of_row]
    sheet = paper.Sheet(WIDTH, page=looks)
    pictures = _draw_curves(rows, sheet)
    scores = _score_clients(rows, sheet)
    compared = _compare(arranged, column, rows)
    if scores is not None:
        pictures |= _draw_clients(scores, rows, sheet)
    if any("train_counts" in run.results.static for run in runs):
        drawn = partition.draw(runs, sheet, CLIENTS)
        pictures["Partition", "Training samples of each client and class"] = drawn
    return Chapter(
        column,
        compared,
        [
            Picture(heading, caption, as_svg(figure, f"{name}-{number}"))
            for number, ((heading, caption), figure) in enumerate(pictures.items())
        ],
        [*_tabulate_spread(runs, arranged, list(rows)), tabulate_costs(rows)],
        sheet.notes,
    )


def as_svg(figure: "Figure", name: str) -> str:
    """Return a figure as an SVG element; its ids differ from those of another ``name``."""
    text = figures.as_svg(figure, name).decode()
    return PART_ID.sub("", text[text.index("<svg") :])


def best_first(rows: Mapping[str, Sequence[Placed]]) -> dict[str, list[Run]]:
    """Return the runs of each row, sorted by the mean of the primary metric over
    repetitions; rows without one last.
    """
    runs = {row: [placed.run for placed in cell] for row, cell in rows.items()}

    def order(row: str) -> float:
        ranks = []
        for run in runs[row]:
            if run.summary.best is not None:
                ranks.append(run.measure.rank(run.summary.best[run.score]))
        return -sum(ranks) / len(ranks) if ranks else math.inf

    return {row: runs[row] for row in sorted(runs, key=order)}


Pictures = dict[tuple[str, str], "Figure"]  # by heading and caption


def _draw_curves(rows: Mapping[str, list[Run]], sheet: paper.Sheet) -> Pictures:
    """Draw the primary metric over rounds, and over the clients' own time where it is
    recorded; packed runs have too few rounds.
    """
    runs = [run for of_row in rows.values() for run in of_row]
    if any(run.results.is_packed for run in runs):
        return {}
    metric, measure = runs[0].metric, runs[0].measure
    repetitions = {(row, ""): of_row for row, of_row in rows.items()}
    pictures: Pictures = {}
    for axis in ("rounds", "virtual"):
        panels = curves.over_cost(repetitions, metric, axis)
        lines = [line for line in panels[""] if line.x.any()]
        if lines:
            ylabel = _lines.scored(runs, metric)
            figure = curves.draw(sheet, {"": lines}, measure, axis, ylabel)
            ends = ", ".join(f"{line.label} {line.end:.4g}" for line in lines)
            caption = f"mean over repetitions ± sample standard deviation; last: {ends}"
            pictures[f"Curves over {AXES[axis][0]}", caption] = figure
    return pictures


def _draw_clients(
    scores: Rows, rows: Mapping[str, list[Run]], sheet: paper.Sheet
) -> Pictures:
    """Draw each client's own number, and its gain over training alone."""
    dots = "a dot is a client's own number in the best round; a box has the middle half"
    pictures = {("Spread over clients", dots): clients.draw(sheet, scores)}
    alone = [row for row in rows if rows[row][0].summary.method == ALONE]
    if len(alone) == 1 and len(rows) > 1:
        beside = gains.beside(scores, alone[0])
        caption = "each client's own number less that of its model trained alone"
        figure = gains.draw(sheet, beside, alone[0])
        pictures["Gains over training alone", caption] = figure
    return pictures


def _compare(
    arranged: Arrangement, column: str, rows: Mapping[str, list[Run]]
) -> Sheet | str:
    """Compare all rows with one that does not depend on the results: training alone,
    else FedAvg, else the first row of the table.
    """
    if len(rows) < 2:
        return "no interval: a row alone cannot be compared"
    reference = _find_reference(arranged, rows)
    measure = rows[reference][0].measure
    if measure.kind == "std":
        return f"no interval: clients have no {measure.score} of their own"
    try:
        return comparison.sheet(arranged, column, Reference(reference), measure, AT)
    except UserError as error:
        return f"no interval: {error}"


def _find_reference(arranged: Arrangement, rows: Mapping[str, list[Run]]) -> str:
    """Return the label of the row with which the others are compared."""
    in_order = [row for row in arranged.rows if row in rows]
    for method in REFERENCES:
        found = [row for row in in_order if rows[row][0].summary.method == method]
        if len(found) == 1:
            return found[0]
    return in_order[0]


def _score_clients(rows: Mapping[str, list[Run]], sheet: paper.Sheet) -> Rows | None:
    """Return the clients' numbers of runs whose partition is recorded."""
    repetitions = {}
    for row, runs in rows.items():
        recorded = [run for run in runs if "test_counts" in run.results.static]
        if recorded:
            repetitions[row, ""] = recorded
    if not repetitions:
        return None
    first, *_ = repetitions.values()
    try:
        return _clients.rows_of(repetitions, sheet, first[0].metric, AT)
    except UserError:  # a score of all clients together, or no round that is scored
        return None


def _tabulate_spread(
    runs: list[Run], arranged: Arrangement, rows: Sequence[str]
) -> list[Sheet]:
    """Return a table with each summary over clients of the primary score."""
    import pandas

    score = runs[0].measure.score
    described = runs[0].scores.get(score)
    if described is None or not all(run.summary.finished for run in runs):
        return []
    texts, best = {}, {}
    for kind, name in described["recorded"].items():
        if any(f"{run.score}/{name}" in run.results.values for run in runs):
            reading = Reading(f"{score}/{kind}", AT)
            grid = sweep_table.make(runs, arranged.down, arranged.across, reading)
            heading = KINDS.get(kind, kind)
            texts[heading] = grid.texts[grid.columns[0]]
            best[heading] = grid.best[grid.columns[0]]
    title = f"Spread of {score} over clients in the best round"
    frame = pandas.DataFrame(texts).reindex(rows)
    return [Sheet(title, frame, pandas.DataFrame(best).reindex(rows), frame)]


def tabulate_costs(rows: Mapping[str, Sequence[Run]]) -> Sheet:
    """Return a table of costs, means over the runs of each row."""
    import pandas

    means = {}
    for row, runs in rows.items():
        costs = pandas.DataFrame(map(measure_costs, runs), dtype=float)
        means[row] = costs.mean()
    numbers = pandas.DataFrame(means).T
    # On a single rank no bytes are moved: a dash shows that.
    texts = numbers.map(lambda cost: f"{cost:,.4g}" if cost > 0 else MISSING)
    whole = numbers["whole run"]
    texts["whole run"] = whole.map(lambda cost: duration(cost) if cost > 0 else MISSING)
    title = (
        "Cost: floats of a client in a round, megabytes over MPI and seconds of a round, "
        "means without the first round; phases overlap"
    )
    return Sheet(title, texts, texts.map(lambda text: False), numbers)


def measure_costs(run: Run) -> dict[str, float | None]:
    """Return what a round of a run costs, without the first, and the whole run."""
    rounds = run.rounds().astype(float)
    means = rounds[run.results.played][1:].mean()
    whole = math.nan
    if "seconds/round" in rounds and not run.results.is_packed:
        whole = rounds["seconds/round"].sum()
    costs: dict[str, float | None] = {
        "floats down": run.summary.floats_down,
        "floats up": run.summary.floats_up,
        "MB down": means.get("bytes_down", math.nan) / 1e6,
        "MB up": means.get("bytes_up", math.nan) / 1e6,
        "whole run": whole,
    }
    for name in means.index:
        if name.startswith("seconds/"):
            costs[f"s/{name.partition('/')[2]}"] = means[name]
    return costs
