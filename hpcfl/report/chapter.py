"""What came out on one data set and partition: figures and tables of all methods, for a
page.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report import comparison, costs, figures, grid, inline_svg, sweep_table
from hpcfl.report.arrangement import Arrangement, Placed, called
from hpcfl.report.grid import Grid
from hpcfl.report.plots import (
    _clients,
    _lines,
    clients,
    curves,
    gains,
    participation,
    partition,
)
from hpcfl.report.plots._clients import Rows
from hpcfl.report.plots.base import Sheet
from hpcfl.report.series import AXES
from hpcfl.report.style import Look
from hpcfl.report.summary import Run
from hpcfl.report.sweep_table import Reading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 10.0  # inches of a figure, which a wide screen shows half as large again
CLIENTS, CLASSES = 100, 100  # of a partition that are shown
PARTITIONS = 3  # different ones that are shown
TIMETABLES = 4  # different ones that are shown
# The methods beside which others stand, the first that a column has.
ALONE = "local"
REFERENCES = (ALONE, "fedavg")
AT = "best"  # where clients are read, as by default in tables


@dataclass(frozen=True)
class Paper:
    """What the figures of a page are drawn on.

    looks: of all rows of the page, by label. name: begins the ids of the figures.
    shown: what the page makes of a text that may come from a file.
    """

    looks: Mapping[str, Look]
    name: str
    shown: Callable[[str], str]

    def sheet(self) -> Sheet:
        """The sheet of one figure."""
        return Sheet(WIDTH, page=self.looks)

    def svg(self, figure: "Figure", kind: str) -> str:
        """A figure as part of the page."""
        content = figures.as_svg(figure)
        return inline_svg.inline(content, f"{self.name}-{kind}", self.shown)


@dataclass(frozen=True)
class Curves:
    """Lines over one axis as SVG, and the numbers at their ends, as text."""

    svg: str
    label: str
    ends: str


@dataclass(frozen=True)
class Clients:
    """All clients' own numbers as SVG: in the best round, and over rounds, or "" where
    fewer than two are scored. notes: on what is left out.
    """

    svg: str
    over_rounds: str
    notes: list[str]


@dataclass(frozen=True)
class Gains:
    """The clients' gains beside one row.

    Attributes:
        reference: The label of that row.
        table: The gains with intervals over partitions; None where there is none.
        why: Says why there is no table, else "".
        svg: A dot for each client beside training alone, "" for another reference.
    """

    reference: str = ""
    table: grid.Sheet | None = None
    why: str = ""
    svg: str = ""


@dataclass(frozen=True)
class Chapter:
    """What came out on one data set and partition, a column of the tables.

    curves: by axis. participation, partitions: as SVG, "" where nothing is recorded of
    them.
    """

    label: str
    curves: dict[str, Curves]
    clients: Clients | None
    gains: Gains
    participation: str
    partitions: str
    fairness: list[Grid]
    costs: tuple[list[str], list[list[str]]]


def make(arranged: Arrangement, column: str, paper: Paper) -> Chapter:
    """All figures and tables of one column, its rows with the best first.

    It is called within ``figures.house_style``.
    """
    cells = best_first(arranged.column(column))
    rows = {row: [placed.run for placed in cell] for row, cell in cells.items()}
    runs = [run for of_row in rows.values() for run in of_row]
    return Chapter(
        column,
        _curves(rows, paper),
        _clients_of(rows, paper),
        _gains(arranged, column, rows, paper),
        _participation(rows, paper),
        _partitions(cells, paper),
        _fairness(runs, arranged, list(rows)),
        costs.table(rows),
    )


def best_first(rows: Mapping[str, Sequence[Placed]]) -> dict[str, Sequence[Placed]]:
    """The rows sorted by the number that counts, its mean over repetitions; those
    without one last.
    """

    def order(row: str) -> float:
        reached = [(placed.run, placed.run.summary.best) for placed in rows[row]]
        ranks = [
            run.measure.rank(best[run.score])
            for run, best in reached
            if best is not None
        ]
        return -sum(ranks) / len(ranks) if ranks else math.inf

    return {row: rows[row] for row in sorted(rows, key=order)}


def _curves(rows: Mapping[str, list[Run]], paper: Paper) -> dict[str, Curves]:
    """The number that counts over each axis along which something was recorded; none
    of packed runs, which have few of their rounds.
    """
    runs = [run for of_row in rows.values() for run in of_row]
    if any(run.results.is_packed for run in runs):
        return {}
    metric = runs[0].metric
    measure = runs[0].measure
    form = ".2f" if measure.percent else ".4g"
    repetitions = {(row, ""): of_row for row, of_row in rows.items()}
    drawn = {}
    for axis, (label, _) in AXES.items():
        panels = curves.over_cost(repetitions, metric, axis)
        lines = [line for line in panels[""] if line.x.any()]
        if not lines:
            continue
        ylabel = _lines.scored(runs, metric)
        figure = curves.draw(paper.sheet(), {"": lines}, measure, axis, ylabel)
        ends = ", ".join(f"{line.label} {line.end:{form}}" for line in lines)
        drawn[axis] = Curves(paper.svg(figure, axis), label, ends)
    return drawn


def _clients_of(rows: Mapping[str, list[Run]], paper: Paper) -> Clients | None:
    """Each client's own number of the score that counts; None where there are none."""
    sheet = paper.sheet()
    scores = _scored(rows, sheet)
    if scores is None:
        return None
    dots = clients.draw(sheet, scores)
    lines = clients.draw_over_rounds(paper.sheet(), scores)
    return Clients(
        paper.svg(dots, "clients"),
        "" if lines is None else paper.svg(lines, "over-rounds"),
        sheet.notes,
    )


def _gains(
    arranged: Arrangement, column: str, rows: Mapping[str, list[Run]], paper: Paper
) -> Gains:
    """Compare all rows with one that does not depend on the results: training alone,
    else FedAvg, else the first row of the table.
    """
    if len(rows) < 2:
        return Gains(why="no interval: one row alone has nothing to stand beside")
    reference = _reference(arranged, rows)
    measure = next(iter(rows.values()))[0].measure
    if measure.kind == "std":
        return Gains(why=f"no interval: clients have no {measure.score} of their own")
    try:
        table = comparison.sheet(arranged, column, reference, measure, AT)
    except UserError as error:
        return Gains(why=f"no interval: {error}")
    svg = ""
    scores = _scored(rows, paper.sheet())
    if rows[reference][0].summary.method == ALONE and scores is not None:
        of_rows = gains.beside(scores, reference)
        svg = paper.svg(gains.draw(paper.sheet(), of_rows, reference), "gains")
    return Gains(reference, table, "", svg)


def _reference(arranged: Arrangement, rows: Mapping[str, list[Run]]) -> str:
    """Return the label of the row beside which the others stand."""
    in_order = [row for row in arranged.rows if row in rows]
    for method in REFERENCES:
        found = [row for row in in_order if rows[row][0].summary.method == method]
        if len(found) == 1:
            return found[0]
    return in_order[0]


def _scored(rows: Mapping[str, list[Run]], sheet: Sheet) -> Rows | None:
    """The clients' numbers of runs whose partition is recorded."""
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


def _participation(rows: Mapping[str, list[Run]], paper: Paper) -> str:
    """Who took part when, where it is different; of a few rows, one run each."""
    titles: dict[bytes, list[str]] = {}
    found = {}
    for row, runs in rows.items():
        if not participation.is_recorded(runs[0]):
            continue
        turns = participation.turns(runs[0])
        key = turns.counted.tobytes() + turns.seconds.tobytes()
        titles.setdefault(key, []).append(row)
        found[key] = turns
    if not found:
        return ""
    panels = {}
    for key, turns in list(found.items())[:TIMETABLES]:
        panels[", ".join(titles[key])] = turns
    figure = participation.draw(paper.sheet(), panels)
    return paper.svg(figure, "participation")


def _partitions(rows: Mapping[str, Sequence[Placed]], paper: Paper) -> str:
    """The different partitions of a column's runs, by the counts of samples; a few of
    them.
    """
    everyone = [placed for cell in rows.values() for placed in cell]
    names = called([placed.setting for placed in everyone])
    counted: dict[bytes, np.ndarray] = {}
    grouped: dict[bytes, list[str]] = {}
    seeds: dict[bytes, list[str]] = {}
    for placed, name in zip(everyone, names, strict=True):
        counts = placed.run.results.static.get("train_counts")
        if counts is None:
            continue
        groups = partition.groups_of(placed.run)
        key = counts.tobytes() + repr(groups).encode()
        counted[key] = counts
        grouped[key] = groups
        of_counts = seeds.setdefault(key, [])
        if name not in of_counts:
            of_counts.append(name)
    if not counted:
        return ""
    panels = {}
    panel_groups = {}
    for key, counts in list(counted.items())[:PARTITIONS]:
        clients, classes = counts.shape
        title = f"{clients:,} clients, {classes:,} classes, {', '.join(seeds[key])}"
        if different := len(set(grouped[key])):
            title += f"; {different:,} groups of clients"
        if clients > CLIENTS:
            title += f"; the first {CLIENTS} clients"
        if classes > CLASSES:
            title += f"; the first {CLASSES} classes"
        panels[title] = counts[:CLIENTS, :CLASSES]
        panel_groups[title] = grouped[key][:CLIENTS]
    figure = partition.bubbles(paper.sheet(), panels, panel_groups)
    return paper.svg(figure, "partition")


def _fairness(
    runs: list[Run], arranged: Arrangement, rows: Sequence[str]
) -> list[Grid]:
    """A table for each summary over clients that was recorded of the score that counts,
    with its rows in the order of ``rows``.
    """
    measure = runs[0].measure
    described = runs[0].scores.get(measure.score)
    if described is None or not all(run.summary.finished for run in runs):
        return []
    return [
        sweep_table.make(
            runs, arranged.down, arranged.across, Reading(f"{measure.score}/{kind}", AT)
        ).ordered(rows)
        for kind, name in described["recorded"].items()
        if any(f"{run.score}/{name}" in run.results.values for run in runs)
    ]
