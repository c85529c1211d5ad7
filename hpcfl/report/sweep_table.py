"""``hpcfl table``: runs in rows and columns by any keys, with mean ± standard deviation
over seeds.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.measure import Measurement

from hpcfl.errors import UserError
from hpcfl.experiment import measures
from hpcfl.report import pairing, summary, table_formats
from hpcfl.report.arrangement import (
    OF_DATA,
    Arrangement,
    Placed,
    arrange,
    label,
    seeds,
)
from hpcfl.report.grid import Entry, Grid
from hpcfl.report.population import clients_text, few, mixed
from hpcfl.report.reading import (
    VALIDATION,
    Number,
    named,
    read_at,
    refuse_unknown,
    value,
    where_read,
)
from hpcfl.report.summary import Run
from hpcfl.report.text import WIDEST, literal, plain

NOTED = (
    "versions.hpcfl",
    "commit",
    "runtime.precision",
)  # what makes runs hard to compare, if it differs
ONE_PARTITION = (
    "all seeds have the same partition, so that ± says nothing about others; "
    "without partition.seed each has its own"
)
EXPLANATION = (
    "rows and columns are keys in which the runs differ, --rows and --columns choose others; "
    "an entry is the mean ± standard deviation over runs that differ in nothing but their "
    "seeds, and (2) says that there are only two; bold is the best of a column",
    "without --metric it is the number that counts (evaluation.metric) in each method's own "
    "column, before local training (pre) or after it (post), on the clients' own test "
    "samples; --metric validation is the same on training samples that were held out",
    "a run's best round is the best of all in which that number was scored, by the samples "
    "that the title names; --at last is the last round, --at tail the mean of the last tenth",
)
MODELS = {"pre": "before local training", "post": "after it"}
LOWER_IS_BETTER = (
    "seconds",
    "bytes",
    "floats",
    "std",
)  # in names of recorded numbers that are no scores


@dataclass(frozen=True)
class Reading:
    """Which numbers a table has.

    metric: a recorded number such as ``post/mean`` or ``seconds/round``; or, in the
        column that counts, a score (``accuracy``), SCORE/SUMMARY, or a recorded name
        such as ``macro_f1_std``; "" for the one that counts in the first run;
        "validation" for the one that counts in each, on held-out training samples.
    at: where it is read in a run, "best", "last" or "tail" (see
        ``storage/moments.py``).
    std: the standard deviation over seeds, "population" as in PFLlib's tables, or
        "sample".
    test: whether notes say which rows differ by more than the noise (see
        ``pairing.py``).
    """

    metric: str = ""
    at: str = "best"
    std: str = "population"
    test: bool = False


def show(
    folders: Sequence[Path],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    reading: Reading = Reading(),
    form: str = "terminal",
    explain: bool = False,
) -> None:
    """Print the table of the finished runs below folders.

    form: terminal, one of ``TEXTS``, or clients, which is a CSV of every client's
    numbers in every run. explain: whether notes say what the numbers are.

    The other arguments are those of ``make``. Raises UserError.
    """
    runs, notes = summary.runs_below(folders)
    if form == "clients":
        print(_of_clients(runs, reading))
        return _to_errors(notes)
    grid = make(runs, rows, columns, reading)
    grid.notes.extend([*notes, *(EXPLANATION if explain else ())])
    if form == "terminal":
        console = Console(highlight=False)
        console.print(table_formats.terminal(grid))
        boundless = console.options.update(max_width=WIDEST)
        if (
            Measurement.get(console, boundless, table_formats.cells_of(grid)).maximum
            > console.width
        ):
            console.print(
                literal(
                    f"note: cut to the terminal's {console.width} columns; --format markdown "
                    "and csv are not, --rows and --columns choose the keys"
                ),
                soft_wrap=True,
            )
    else:
        print(table_formats.TEXTS[form](grid))
    if form == "csv":
        _to_errors(grid.notes)


def _to_errors(notes: Sequence[str]) -> None:
    """Print notes where they are not part of a table for other programs, which has no
    place for them.
    """
    for note in notes:
        print(plain(f"note: {note}"), file=sys.stderr)


def _of_clients(runs: list[Run], reading: Reading) -> str:
    """Of each run the numbers of all clients in the rounds that count there, as CSV."""
    import pandas

    from hpcfl.report import frames

    refuse_unknown(runs, reading.metric or runs[0].metric)
    chosen = {}
    for run in runs:
        read = where_read(run, reading.metric or run.metric, reading.at)
        chosen[str(run.folder)] = frames.clients(run.results).loc[
            run.results.rounds[read].tolist()
        ]
    return str(pandas.concat(chosen, names=["run"]).to_csv()).rstrip("\n")


def make(
    runs: list[Run],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    reading: Reading = Reading(),
) -> Grid:
    """The table of the finished runs; those left out are named in its notes. Raises
    UserError.

    rows, columns: dotted keys of the configuration; if empty, method × data set and
    partition, and whatever else differs between runs.
    """
    metric = reading.metric or runs[0].metric
    at = read_at(metric, reading.at)
    found = arrange(runs, rows, columns)
    refuse_unknown(found.runs, metric)
    numbers = {
        place: [value(placed.run, metric, at) for placed in cell]
        for place, cell in found.cells.items()
    }
    name, measure = named(found.runs[0], metric)
    factor, ddof = measure.factor if measure else 1, 1 if reading.std == "sample" else 0
    best_by = {
        place: _best_by(cell) if at == "best" else ""
        for place, cell in found.cells.items()
    }
    entries = [
        [
            _entry(numbers[row, column], factor, ddof, best_by[row, column])
            if (row, column) in numbers
            else None
            for column in found.columns
        ]
        for row in found.rows
    ]
    notes = [
        *found.notes,
        *_mixed_choices(best_by),
        *_mixed_models(found, metric),
        *_one_partition(found),
        *_mixed_origins(found),
        *_mixed_populations(found, numbers),
    ]
    if reading.test:
        notes += _tested(found, metric, at)
    lower = (
        measure.better == "down"
        if measure
        else any(word in name for word in LOWER_IS_BETTER)
    )
    return Grid(
        metric,
        at,
        reading.std,
        found.rows,
        found.columns,
        _mark_best(entries, lower),
        measure is not None and measure.percent,
        notes,
    )


def _tested(found: Arrangement, metric: str, at: str) -> list[str]:
    """A note for each column of the table on which rows differ by more than the noise.
    Raises UserError.
    """
    name, measure = read = named(found.runs[0], metric)
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--test compares clients by a score of theirs, and {metric} is none"
        )
    column = read.column if metric == name else ""
    column = VALIDATION if metric == VALIDATION else column
    notes = []
    for where in found.columns:
        rows = found.column(where)
        same = (
            len(
                {
                    repr([seeds(placed.setting) for placed in cell])
                    for cell in rows.values()
                }
            )
            == 1
        )
        notes.append(
            pairing.note(
                {row: [placed.run for placed in cell] for row, cell in rows.items()},
                column,
                measure,
                at,
                where,
            )
            if same
            else f"{where}: not tested, the rows have not the same seeds"
        )
    return notes


def _entry(values: list[Number], factor: float, ddof: int, best_by: str) -> Entry:
    """The repetitions' numbers times ``factor``, summed up."""
    numbers = factor * np.array([one.value for one in values])
    return Entry(
        float(numbers.mean()),
        float(numbers.std(ddof=ddof)) if len(numbers) > 1 else math.nan,
        len(numbers),
        clients_text([one.clients for one in values]),
        best_by,
    )


def _best_by(cell: Sequence[Placed]) -> str:
    """The samples that chose the best rounds of the runs in an entry."""
    return " or ".join(sorted({placed.run.summary.best_by for placed in cell}))


def _mixed_choices(best_by: dict[tuple[str, str], str]) -> list[str]:
    """A note where the best rounds of some runs were chosen on other samples than those
    of others.

    best_by: as in ``Entry``, by row and column.
    """
    rows: dict[str, dict[str, None]] = {}
    for (row, _), samples in best_by.items():
        rows.setdefault(samples, {})[row] = None
    if len(rows) < 2:
        return []
    parts = (f"{samples} samples ({few(list(of))})" for samples, of in rows.items())
    return [f"best rounds are chosen on {' and on '.join(parts)}"]


def _one_partition(found: Arrangement) -> list[str]:
    """A note on columns in which repetitions of an experiment all have one partition."""
    columns = [
        column
        for column in found.columns
        if any(
            len(cell) > 1
            and len({placed.setting.get("partition.seed") for placed in cell}) == 1
            for cell in found.column(column).values()
        )
    ]
    if columns == found.columns:
        return [ONE_PARTITION]
    return [f"{column}: {ONE_PARTITION}" for column in columns]


def _mixed_models(found: Arrangement, metric: str) -> list[str]:
    """A note where numbers are of each method's own models, for some before and for
    others after training.
    """
    places: dict[str, list[tuple[str, str]]] = {}
    for place, cell in found.cells.items():
        for placed in cell:
            column = named(placed.run, metric).column
            places.setdefault(column, []).append(place)
    if len(places) < 2:
        return []
    rows = [{row for row, _ in of} for of in places.values()]
    apart = len(set.union(*rows)) == sum(map(len, rows))
    axis = 0 if apart else 1  # where rows do not tell these models apart, columns do
    prefix = measures.VALIDATION if metric == VALIDATION else ""
    known = {
        column: list(dict.fromkeys(place[axis] for place in places[column]))
        for column in (*(f"{prefix}{model}" for model in MODELS), *sorted(places))
        if column in places
    }
    parts = (
        f"{MODELS.get(column.removeprefix(prefix), column)} ({few(of)})"
        for column, of in known.items()
    )
    number = named(found.runs[0], metric).recorded.rpartition("/")[2]
    return [
        f"each method's own models: {', '.join(parts)}; --metric {prefix}post/{number} is of the same for all"
    ]


def _mixed_origins(found: Arrangement) -> list[str]:
    """A note for each thing that changes numbers, is none of the table's keys and not
    the same for all.
    """
    notes = []
    for key in NOTED:
        rows: dict[
            str, dict[str, None]
        ] = {}  # by the key's value, the rows that have it
        for (row, _), cell in found.cells.items():
            for placed in cell:
                if (
                    content := placed.setting.get(key)
                ) is not None:  # else it was not recorded
                    rows.setdefault(str(content), {})[row] = None
        if len(rows) > 1 and key not in found.down:
            parts = (f"{content} ({few(list(of))})" for content, of in rows.items())
            notes.append(f"these runs differ in {key}: {', '.join(parts)}")
    return notes


def _mixed_populations(
    found: Arrangement, numbers: dict[tuple[str, str], list[Number]]
) -> list[str]:
    """A warning for each data set and partition whose numbers are of different numbers
    of clients.
    """
    counts: dict[
        str, dict[str, list[float]]
    ] = {}  # of the data, of what else differs: numbers of clients
    for place, cell in found.cells.items():
        for placed, number in zip(cell, numbers[place], strict=True):
            data, other = (
                label(
                    placed.setting,
                    [
                        key
                        for key in (*found.across, *found.down)
                        if key.startswith(OF_DATA) == of_data
                    ],
                )
                for of_data in (True, False)
            )
            counts.setdefault(data, {}).setdefault(other, []).append(number.clients)
    warnings = {
        data: mixed({name: clients_text(of_name) for name, of_name in of.items()})
        for data, of in counts.items()
    }
    return [f"{data}: {warning}" for data, warning in warnings.items() if warning]


def _mark_best(
    entries: list[list[Entry | None]], lower: bool
) -> list[list[Entry | None]]:
    """The same entries with ``best`` set in each column; ``lower``: whether lower means
    are better.
    """
    choose: Callable[..., Any] = min if lower else max
    best = [
        choose(
            (entry.mean for entry in column if entry and entry.mean == entry.mean),
            default=None,
        )
        for column in zip(*entries, strict=True)
    ]
    return [
        [
            entry and replace(entry, best=entry.mean == top)
            for entry, top in zip(row, best, strict=True)
        ]
        for row in entries
    ]
