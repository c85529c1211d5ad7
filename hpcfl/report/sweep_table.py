"""``hpcfl table``: runs in rows and columns by any keys, with mean ± standard deviation over seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hpcfl.errors import UserError
from hpcfl.report import pairing, repetitions, table_formats
from hpcfl.report.grid import Entry, Grid
from hpcfl.report.population import clients_text, mixed
from hpcfl.report.reading import Number, named, refuse_unknown, value
from hpcfl.report.repetitions import OF_DATA, SEEDS, Placed, Setting, label
from hpcfl.report.summary import Run

ONE_PARTITION = ("all seeds have the same partition, so that ± says nothing about others; "
                 "a sweep over partition.seed does")
LOWER_IS_BETTER = ("seconds", "bytes", "floats", "std")  # in names of recorded numbers that are no scores


@dataclass(frozen=True)
class Reading:
    """Which numbers a table has.

    metric: a recorded number such as ``post/mean`` or ``seconds/round``; or, in the column that counts, a
    score (``accuracy``), SCORE/SUMMARY, or a recorded name such as ``macro_f1_std``; "" for the one that
    counts in the first run.
    at: where it is read in a run, "best", "last" or "tail" (see ``storage/moments.py``).
    std: the standard deviation over seeds, "population" as in PFLlib's tables, or "sample".
    test: whether notes say which rows differ by more than the noise (see ``pairing.py``).
    """

    metric: str = ""
    at: str = "best"
    std: str = "population"
    test: bool = False


def show(folder: Path, rows: Sequence[str] = (), columns: Sequence[str] = (), reading: Reading = Reading(),
         form: str = "terminal") -> None:
    """Print the table of the finished runs below a folder; ``form``: terminal, or one of ``TEXTS``.

    The other arguments are those of ``make``. Raises UserError.
    """
    grid = make(repetitions.runs_below(folder), rows, columns, reading)
    if form == "terminal":
        Console(highlight=False).print(table_formats.terminal(grid))
    else:
        print(table_formats.TEXTS[form](grid))


def make(runs: list[Run], rows: Sequence[str] = (), columns: Sequence[str] = (),
         reading: Reading = Reading()) -> Grid:
    """The table of the finished runs; those left out are named in its notes. Raises UserError.

    rows, columns: as for ``repetitions.placed``.
    """
    metric = reading.metric or runs[0].metric
    placed = repetitions.placed(runs, rows, columns)
    refuse_unknown(placed.runs, metric)
    groups: dict[tuple[str, str], list[Number]] = {}
    numbers = [value(run, metric, reading.at) for run in placed.runs]
    for number, place in zip(numbers, placed.places, strict=True):
        groups.setdefault(place, []).append(number)
    name, measure = named(placed.runs[0], metric)
    labels = [list(dict.fromkeys(place[axis] for place in groups)) for axis in (0, 1)]
    factor = measure.factor if measure else 1
    ddof = 1 if reading.std == "sample" else 0
    entries = [[_entry(groups.get((row, column)), factor, ddof) for column in labels[1]] for row in labels[0]]
    notes = [*placed.notes, *([ONE_PARTITION] if repetitions.share_a_partition(placed.settings) else []),
             *_mixed_populations(placed, numbers)]
    if reading.test:
        notes += _tested(placed, metric, reading.at)
    lower = measure.better == "down" if measure else any(word in name for word in LOWER_IS_BETTER)
    return Grid(metric, reading.at, reading.std, labels[0], labels[1], _mark_best(entries, lower),
                measure is not None and measure.percent, notes)


def _tested(placed: Placed, metric: str, at: str) -> list[str]:
    """A note for each column of the table."""
    name, measure = found = named(placed.runs[0], metric)
    if measure is None or measure.kind == "std":
        raise UserError(f"--test compares clients by a score of theirs, and {metric} is none")
    column = found.column if metric == name else ""
    cells: dict[str, dict[str, list[tuple[Setting, Run]]]] = {}
    for run, setting, (row, across) in zip(placed.runs, placed.settings, placed.places, strict=True):
        seeds = {key: setting.get(key) for key in SEEDS}
        cells.setdefault(across, {}).setdefault(row, []).append((seeds, run))
    notes = []
    for across, rows in cells.items():
        ordered = {row: sorted(found, key=lambda one: repr(one[0])) for row, found in rows.items()}
        same = len({repr([seeds for seeds, _ in found]) for found in ordered.values()}) == 1
        notes.append(pairing.note({row: [run for _, run in found] for row, found in ordered.items()}, column,
                                  measure, at, across) if same
                     else f"{across}: not tested, the rows have not the same seeds")
    return notes


def _entry(values: list[Number] | None, factor: float, ddof: int) -> Entry | None:
    """The repetitions' numbers times ``factor``, summed up; None if there are none."""
    if values is None:
        return None
    numbers = factor * np.array([one.value for one in values])
    return Entry(float(numbers.mean()), float(numbers.std(ddof=ddof)) if len(numbers) > 1 else math.nan,
                 len(numbers), clients_text([one.clients for one in values]))


def _mixed_populations(placed: Placed, numbers: list[Number]) -> list[str]:
    """A warning for each data set and partition whose numbers are of different numbers of clients."""
    keys = (*placed.across, *placed.down)
    counts: dict[str, dict[str, list[float]]] = {}  # of the data, of what else differs: numbers of clients
    for setting, number in zip(placed.settings, numbers, strict=True):
        data, other = (label(setting, [key for key in keys if key.startswith(OF_DATA) == of_data])
                       for of_data in (True, False))
        counts.setdefault(data, {}).setdefault(other, []).append(number.clients)
    warnings = {data: mixed({name: clients_text(counts) for name, counts in of.items()})
                for data, of in counts.items()}
    return [f"{data}: {warning}" for data, warning in warnings.items() if warning]


def _mark_best(entries: list[list[Entry | None]], lower: bool) -> list[list[Entry | None]]:
    """The same entries with ``best`` set in each column; ``lower``: whether lower means are better."""
    choose: Callable[..., Any] = min if lower else max
    best = [choose((entry.mean for entry in column if entry and entry.mean == entry.mean), default=None)
            for column in zip(*entries, strict=True)]
    return [[entry and replace(entry, best=entry.mean == top)
             for entry, top in zip(row, best, strict=True)] for row in entries]
