"""What came out on one data set and partition: charts and tables of all methods, for a
page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcfl.report import charts, client_curves, colours, costs, series, sweep_table
from hpcfl.report.arrangement import Arrangement, Placed, called
from hpcfl.report.charts import Curves, Spread
from hpcfl.report.client_curves import ClientCurves
from hpcfl.report.grid import Grid
from hpcfl.report.reading import of_clients
from hpcfl.report.style import Look, looks
from hpcfl.report.summary import Run
from hpcfl.report.sweep_table import Reading
from hpcfl.report.text import plain
from hpcfl.storage import moments

CLIENTS, CLASSES = 100, 100  # of a partition that are shown
PARTITIONS = 6  # different ones that are shown
AT = "best"  # where clients are read, as by default in tables


@dataclass(frozen=True)
class Partition:
    """Training samples of clients [clients, classes], perhaps cut off; seeds: of its
    runs.
    """

    counts: list[list[int]]
    most: int
    clients: int
    classes: int
    seeds: list[str]


@dataclass(frozen=True)
class Chapter:
    """What came out on one data set and partition, a column of the tables."""

    label: str
    partitions: list[Partition]
    curves: list[Curves]
    spread: Spread | None
    client_curves: ClientCurves | None
    fairness: list[Grid]
    costs: tuple[list[str], list[list[str]]]


def make(arranged: Arrangement, column: str) -> Chapter:
    """All charts and tables of one column, its rows with the best first."""
    rows = best_first(arranged.column(column))
    of_rows = {row: [placed.run for placed in cell] for row, cell in rows.items()}
    runs = [run for of_row in of_rows.values() for run in of_row]
    methods = [of_row[0].summary.method for of_row in of_rows.values()]
    of_lines = {
        row: replace(
            look, color=colours.of(method)
        )  # which are seen on a dark page, too
        for row, method, look in zip(of_rows, methods, looks(methods), strict=True)
    }
    form = ".2f" if runs[0].measure.percent else ".4g"
    drawn = [
        charts.curves(
            name,
            text,
            {row: series.mean(of_row, name) for row, of_row in of_rows.items()},
            of_lines,
            form,
        )
        for name, (text, _) in series.AXES.items()
    ]
    return Chapter(
        column,
        _partitions(rows),
        [one for one in drawn if one],
        _spread(rows, of_lines),
        _client_curves(rows),
        _fairness(runs, arranged, list(of_rows)),
        costs.table(of_rows),
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


def _spread(
    rows: Mapping[str, Sequence[Placed]], of_lines: Mapping[str, Look]
) -> Spread | None:
    """Each client's own number of the score that counts, in the rows of the chart."""
    names, numbers = _repetitions(rows), _numbered(rows)
    of_rows = {
        row: {
            numbers[names[id(placed.run)]]: placed.run.measure.factor
            * of_clients(placed.run, placed.run.score, placed.run.measure, AT)
            for placed in cell
            if "test_counts" in placed.run.results.static
        }
        for row, cell in rows.items()
    }
    of_rows = {row: found for row, found in of_rows.items() if found}
    return charts.spread(of_rows, of_lines, list(numbers)) if of_rows else None


def _client_curves(rows: Mapping[str, Sequence[Placed]]) -> ClientCurves | None:
    """The same number of each client over rounds."""
    names, numbers = _repetitions(rows), _numbered(rows)
    found: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {
        row: {} for row in rows
    }
    for row, cell in rows.items():
        for run in (placed.run for placed in cell):
            of_run = moments.of_clients(run.results, run.score, run.measure.score)
            if of_run is not None:
                found[row][numbers[names[id(run)]]] = (
                    run.results.rounds,
                    run.measure.factor * of_run,
                )
    return client_curves.make(found)


def _numbered(rows: Mapping[str, Sequence[Placed]]) -> dict[str, int]:
    """The repetitions' numbers by what sets them apart."""
    return {
        name: number
        for number, name in enumerate(dict.fromkeys(_repetitions(rows).values()))
    }


def _repetitions(rows: Mapping[str, Sequence[Placed]]) -> dict[int, str]:
    """What sets a repetition apart from others, its seeds, by the ``id`` of its run."""
    everyone = [placed for cell in rows.values() for placed in cell]
    names = called([placed.setting for placed in everyone])
    return {
        id(placed.run): plain(name)
        for placed, name in zip(everyone, names, strict=True)
    }


def _partitions(rows: Mapping[str, Sequence[Placed]]) -> list[Partition]:
    """The different partitions of a column's runs, by the counts of samples; a few of
    them.
    """
    names = _repetitions(rows)
    found: dict[bytes, tuple[np.ndarray, dict[str, None]]] = {}
    for placed in (placed for cell in rows.values() for placed in cell):
        counts = placed.run.results.static.get("train_counts")
        if counts is not None:
            found.setdefault(counts.tobytes(), (counts, {}))[1][
                names[id(placed.run)]
            ] = None
    return [
        Partition(
            counts[:CLIENTS, :CLASSES].tolist(),
            int(counts.max()),
            len(counts),
            len(counts[0]),
            list(of),
        )
        for counts, of in list(found.values())[:PARTITIONS]
    ]
