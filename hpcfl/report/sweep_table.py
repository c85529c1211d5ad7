"""``hpcfl table``: runs in rows and columns by any keys, with mean ± standard deviation over seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import pairing, summary, table_formats
from hpcfl.report.arrangement import OF_DATA, Arrangement, arrange, label, seeds
from hpcfl.report.grid import Entry, Grid
from hpcfl.report.population import clients_text, few, mixed
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure, resolve
from hpcfl.storage import run_folder
from hpcfl.storage.moments import CLIENTS, positions

NOTED = ("versions.hpcfl", "commit", "runtime.precision")  # what makes runs hard to compare, if it differs
ONE_PARTITION = ("all seeds have the same partition, so that ± says nothing about others; "
                 "a sweep over partition.seed does")
LOWER_IS_BETTER = ("seconds", "bytes", "floats", "std")  # in names of recorded numbers that are no scores
NO_COLUMNS = ("recorded", "seconds")  # what stands before '/' in names of recorded numbers that are no scores


class Number(NamedTuple):
    """A number of a run, and of how many clients it is, NaN if that was not recorded."""

    value: float
    clients: float


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
    grid = make(runs_below(folder), rows, columns, reading)
    if form == "terminal":
        Console(highlight=False).print(table_formats.terminal(grid))
    else:
        print(table_formats.TEXTS[form](grid))


def runs_below(folder: Path) -> list[Run]:
    """The runs in a folder and in all folders below it, but for those that ``--fresh`` moved aside.

    Raises UserError if there are none.
    """
    folders = sorted(below for below in folder.glob("**/") if run_folder.is_run(below))  # with the folder
    runs = [summary.load(below) for below in folders
            if not any(run_folder.is_aside(part) for part in (below, *below.parents))]
    if not runs:
        raise UserError(f"{folder}: no run of hpcfl here")
    return runs


def make(runs: list[Run], rows: Sequence[str] = (), columns: Sequence[str] = (),
         reading: Reading = Reading()) -> Grid:
    """The table of the finished runs; those left out are named in its notes. Raises UserError.

    rows, columns: dotted keys of the configuration; if empty, method × data set and partition, and whatever
    else differs between runs.
    """
    metric = reading.metric or runs[0].metric
    done = [run for run in runs if run.summary.finished]
    notes = [f"{run.label}: left out, it stands at round {run.summary.rounds} of {run.config['rounds']}"
             for run in runs if not run.summary.finished]
    if not done:
        raise UserError("; ".join(["no run is finished yet", *notes]))
    found = arrange(done, rows, columns)
    _refuse_unknown(done, metric)
    numbers = {place: [value(placed.run, metric, reading.at) for placed in cell]
               for place, cell in found.cells.items()}
    name, measure = _resolve(_first(found), metric)
    factor, ddof = measure.factor if measure else 1, 1 if reading.std == "sample" else 0
    entries = [[_entry(numbers.get((row, column)), factor, ddof) for column in found.columns]
               for row in found.rows]
    notes = [*found.notes, *notes, *_one_partition(found), *_mixed_origins(found),
             *_mixed_populations(found, numbers)]
    if reading.test:
        notes += _tested(found, metric, reading.at)
    lower = measure.better == "down" if measure else any(word in name for word in LOWER_IS_BETTER)
    return Grid(metric, reading.at, reading.std, found.rows, found.columns, _mark_best(entries, lower),
                measure is not None and measure.percent, notes)


def value(run: Run, metric: str, at: str) -> Number:
    """A number of a run, NaN if it was never recorded in a round that is asked for, and of how many clients.

    metric, at: as in ``Reading``; which rounds that are: ``moments.positions``.
    """
    name, known = _resolve(run, metric)[0], _recorded(run)
    rounds, best = run.results.rounds, run.summary.best
    if name not in known:
        return Number(math.nan, math.nan)
    numbers = known[name].astype(float)
    read = positions(rounds, numbers, best["round"] if best else None, at)
    if not read:
        return Number(math.nan, math.nan)
    clients = known.get(f"{name.partition('/')[0]}/{CLIENTS}", np.full(len(rounds), np.nan))
    return Number(float(numbers[read].mean()), float(clients[read].mean()))


def _recorded(run: Run) -> dict[str, np.ndarray]:
    """What was recorded once a round, [T] by name."""
    return {name: values for name, values in run.results.values.items() if values.ndim == 1}


def _tested(found: Arrangement, metric: str, at: str) -> list[str]:
    """A note for each column of the table on which rows differ by more than the noise. Raises UserError."""
    name, measure = _resolve(_first(found), metric)
    if measure is None or measure.kind == "std":
        raise UserError(f"--test compares clients by a score of theirs, and {metric} is none")
    column = name.rpartition("/")[0] if metric == name else ""
    notes = []
    for where in found.columns:
        rows = found.column(where)
        same = len({repr([seeds(placed.setting) for placed in cell]) for cell in rows.values()}) == 1
        notes.append(pairing.note({row: [placed.run for placed in cell] for row, cell in rows.items()},
                                  column, measure, at, where) if same
                     else f"{where}: not tested, the rows have not the same seeds")
    return notes


def _first(found: Arrangement) -> Run:
    return next(placed.run for cell in found.cells.values() for placed in cell)


def _refuse_unknown(runs: list[Run], metric: str) -> None:
    """Raise UserError where no run has such a number. One method may have it, and another not."""
    if not any(_resolve(run, metric)[0] in _recorded(run) for run in runs):
        hint = plugins.nearest(_resolve(runs[0], metric)[0], sorted(_recorded(runs[0])))
        raise UserError(f"{runs[0].folder}: --metric {metric}: not recorded{hint}")


def _resolve(run: Run, metric: str) -> tuple[str, Measure | None]:
    """The recorded name of what ``metric`` asks for, and what that measures, None if it is no score's."""
    if metric not in run.results.values:
        for wanted in (metric, metric.replace("-", "_")):
            if (measure := resolve(wanted, run.scores)) is not None:
                return f"{run.score}/{measure.recorded}", measure
    column, _, rest = metric.rpartition("/")
    return metric, resolve(rest, run.scores) if column not in NO_COLUMNS else None


def _entry(values: list[Number] | None, factor: float, ddof: int) -> Entry | None:
    """The repetitions' numbers times ``factor``, summed up; None if there are none."""
    if values is None:
        return None
    numbers = factor * np.array([one.value for one in values])
    return Entry(float(numbers.mean()), float(numbers.std(ddof=ddof)) if len(numbers) > 1 else math.nan,
                 len(numbers), clients_text([one.clients for one in values]))


def _one_partition(found: Arrangement) -> list[str]:
    """A note on columns in which repetitions of an experiment all have one partition."""
    columns = [column for column in found.columns
               if any(len(cell) > 1 and len({placed.setting.get("partition.seed") for placed in cell}) == 1
                      for cell in found.column(column).values())]
    if columns == found.columns:
        return [ONE_PARTITION]
    return [f"{column}: {ONE_PARTITION}" for column in columns]


def _mixed_origins(found: Arrangement) -> list[str]:
    """A note for each thing that changes numbers, is none of the table's keys and not the same for all."""
    notes = []
    for key in NOTED:
        rows: dict[str, dict[str, None]] = {}  # by the key's value, the rows that have it
        for (row, _), cell in found.cells.items():
            for placed in cell:
                if (content := placed.setting.get(key)) is not None:  # else it was not recorded
                    rows.setdefault(str(content), {})[row] = None
        if len(rows) > 1 and key not in found.down:
            parts = (f"{content} ({few(list(of))})" for content, of in rows.items())
            notes.append(f"these runs differ in {key}: {', '.join(parts)}")
    return notes


def _mixed_populations(found: Arrangement, numbers: dict[tuple[str, str], list[Number]]) -> list[str]:
    """A warning for each data set and partition whose numbers are of different numbers of clients."""
    counts: dict[str, dict[str, list[float]]] = {}  # of the data, of what else differs: numbers of clients
    for place, cell in found.cells.items():
        for placed, number in zip(cell, numbers[place], strict=True):
            data, other = (label(placed.setting, [key for key in (*found.across, *found.down)
                                                  if key.startswith(OF_DATA) == of_data])
                           for of_data in (True, False))
            counts.setdefault(data, {}).setdefault(other, []).append(number.clients)
    warnings = {data: mixed({name: clients_text(of_name) for name, of_name in of.items()})
                for data, of in counts.items()}
    return [f"{data}: {warning}" for data, warning in warnings.items() if warning]


def _mark_best(entries: list[list[Entry | None]], lower: bool) -> list[list[Entry | None]]:
    """The same entries with ``best`` set in each column; ``lower``: whether lower means are better."""
    choose: Callable[..., Any] = min if lower else max
    best = [choose((entry.mean for entry in column if entry and entry.mean == entry.mean), default=None)
            for column in zip(*entries, strict=True)]
    return [[entry and replace(entry, best=entry.mean == top)
             for entry, top in zip(row, best, strict=True)] for row in entries]
