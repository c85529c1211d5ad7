"""``hpcfl table``: runs in rows and columns by any keys, with mean ± standard deviation over seeds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import pairing, summary, table_formats
from hpcfl.report.grid import Entry, Grid
from hpcfl.report.population import clients_text, mixed
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure, resolve
from hpcfl.storage import run_folder
from hpcfl.storage.moments import CLIENTS, positions

ROWS, COLUMNS = ("method.name",), ("data.dataset", "partition.scheme")  # where the user names no keys
SEEDS = ("seed", "partition.seed")  # runs that differ in nothing else are repetitions
# keys and sections that do not make another experiment
IGNORED = ("name", "runtime.", "checkpoint.", "data.root", "partition.file", "evaluation.scores")
ONE_PARTITION = ("all seeds have the same partition, so that ± says nothing about others; "
                 "without partition.seed each has its own")
OF_DATA = ("data.", "partition.")  # keys that set the data
LOWER_IS_BETTER = ("seconds", "bytes", "floats", "std")  # in names of recorded numbers that are no scores
NO_COLUMNS = ("recorded", "seconds")  # what stands before '/' in names of recorded numbers that are no scores
Setting = dict[str, Any]  # dotted key → value


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
    done, notes = _without_copies([run for run in runs if run.summary.finished])
    notes += [f"{run.label}: left out, it stands at round {run.summary.rounds} of {run.config['rounds']}"
             for run in runs if not run.summary.finished]
    if not done:
        raise UserError("; ".join(["no run is finished yet", *notes]))
    _refuse_unknown(done, metric)
    settings = [_setting(run.config) for run in done]
    down, across = _axes(settings, rows, columns)
    if _share_a_partition(settings):
        notes.append(ONE_PARTITION)
    groups: dict[tuple[str, str], list[Number]] = {}
    places = [(_label(setting, down), _label(setting, across)) for setting in settings]
    numbers = [value(run, metric, reading.at) for run in done]
    for number, place in zip(numbers, places, strict=True):
        groups.setdefault(place, []).append(number)
    name, measure = _resolve(done[0], metric)
    labels = [list(dict.fromkeys(label[axis] for label in groups)) for axis in (0, 1)]
    factor = measure.factor if measure else 1
    ddof = 1 if reading.std == "sample" else 0
    entries = [[_entry(groups.get((row, column)), factor, ddof) for column in labels[1]] for row in labels[0]]
    notes += _mixed_populations(settings, numbers, (*across, *down))
    if reading.test:
        notes += _tested(done, settings, places, metric, reading.at)
    lower = measure.better == "down" if measure else any(word in name for word in LOWER_IS_BETTER)
    return Grid(metric, reading.at, reading.std, labels[0], labels[1], _mark_best(entries, lower),
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


def _tested(runs: list[Run], settings: list[Setting], places: list[tuple[str, str]], metric: str,
            at: str) -> list[str]:
    """A note for each column of the table; ``places``: the labels of each run's row and column."""
    name, measure = _resolve(runs[0], metric)
    if measure is None or measure.kind == "std":
        raise UserError(f"--test compares clients by a score of theirs, and {metric} is none")
    column = name.rpartition("/")[0] if metric == name else ""
    cells: dict[str, dict[str, list[tuple[Setting, Run]]]] = {}
    for run, setting, (row, label) in zip(runs, settings, places, strict=True):
        seeds = {key: setting.get(key) for key in SEEDS}
        cells.setdefault(label, {}).setdefault(row, []).append((seeds, run))
    notes = []
    for label, rows in cells.items():
        ordered = {row: sorted(found, key=lambda one: repr(one[0])) for row, found in rows.items()}
        same = len({repr([seeds for seeds, _ in found]) for found in ordered.values()}) == 1
        notes.append(pairing.note({row: [run for _, run in found] for row, found in ordered.items()}, column,
                                  measure, at, label) if same
                     else f"{label}: not tested, the rows have not the same seeds")
    return notes


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


def _without_copies(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """The first run of each configuration, and a note for each other one."""
    first: dict[str, Run] = {}
    notes = []
    for run in runs:
        same = first.setdefault(repr(sorted(_setting(run.config).items())), run)
        if same is not run:
            notes.append(f"{run.folder}: left out, it is the same run as {same.folder}")
    return list(first.values()), notes


def _share_a_partition(settings: list[Setting]) -> bool:
    """Whether runs differ in their seed, and all have the same seed of the partition."""
    return (len({setting.get("seed") for setting in settings}) > 1
            and len({setting.get("partition.seed") for setting in settings}) == 1)


def _setting(config: Mapping[str, Any], prefix: str = "") -> Setting:
    """The configuration as dotted keys, without what does not make another experiment."""
    flat: Setting = {}
    for key, content in config.items():
        if not any(f"{prefix}{key}." == name or (prefix + key) == name for name in IGNORED):
            flat |= (_setting(content, f"{prefix}{key}.") if isinstance(content, dict)
                     else {prefix + key: content})
    return flat


def _axes(settings: list[Setting], rows: Sequence[str],
          columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """The keys of rows and of columns, so many that runs of the same entry differ in their seeds only.

    Raises UserError if the user's ``rows`` and ``columns`` do not suffice for that.
    """
    known = sorted({key for setting in settings for key in setting})
    for key in (*rows, *columns):
        if key not in known:
            raise UserError(f"'{key}' is no key of these runs{plugins.nearest(key, known)}")
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    # numbers of different data stand in different columns, also where no entry would mix them
    if not columns:
        across += [key for key in known if key.startswith(OF_DATA) and key not in (*down, *across, *SEEDS)
                   and any(setting.get(key) != settings[0].get(key) for setting in settings)]
    while lacking := _differing(settings, known, (*down, *across)):
        of_data = lacking.startswith(OF_DATA)
        if columns if of_data else rows:
            raise UserError(f"runs of the same entry differ in {lacking}; add it to --rows or --columns")
        (across if of_data else down).append(lacking)
    return down, across


def _differing(settings: list[Setting], known: list[str], used: Iterable[str]) -> str | None:
    """A key, other than seeds, in which runs differ that agree in all of ``used``; None if there is none."""
    groups: dict[tuple[str, ...], Setting] = {}
    for setting in settings:
        first = groups.setdefault(tuple(repr(setting.get(key)) for key in used), setting)
        for key in known:
            if key not in SEEDS and first.get(key) != setting.get(key):
                return key
    return None


def _label(setting: Setting, keys: Iterable[str]) -> str:
    """A row's or column's label, such as ``fedavg lr=0.1``, from the values of its keys."""
    parts = []
    for key in keys:
        if (content := setting.get(key)) is not None:
            last = key.rpartition(".")[2]
            parts.append(str(content) if last in ("name", "dataset", "scheme") else f"{last}={content}")
    return " ".join(parts)


def _entry(values: list[Number] | None, factor: float, ddof: int) -> Entry | None:
    """The repetitions' numbers times ``factor``, summed up; None if there are none."""
    if values is None:
        return None
    numbers = factor * np.array([one.value for one in values])
    return Entry(float(numbers.mean()), float(numbers.std(ddof=ddof)) if len(numbers) > 1 else math.nan,
                 len(numbers), clients_text([one.clients for one in values]))


def _mixed_populations(settings: list[Setting], numbers: list[Number], keys: Sequence[str]) -> list[str]:
    """A warning for each data set and partition whose numbers are of different numbers of clients.

    keys: those that the table's rows and columns are called by.
    """
    found: dict[str, dict[str, list[float]]] = {}  # of the data, of what else differs: numbers of clients
    for setting, number in zip(settings, numbers, strict=True):
        data, other = (_label(setting, [key for key in keys if key.startswith(OF_DATA) == of_data])
                       for of_data in (True, False))
        found.setdefault(data, {}).setdefault(other, []).append(number.clients)
    warnings = {data: mixed({name: clients_text(counts) for name, counts in of.items()})
                for data, of in found.items()}
    return [f"{data}: {warning}" for data, warning in warnings.items() if warning]


def _mark_best(entries: list[list[Entry | None]], lower: bool) -> list[list[Entry | None]]:
    """The same entries with ``best`` set in each column; ``lower``: whether lower means are better."""
    choose: Callable[..., Any] = min if lower else max
    best = [choose((entry.mean for entry in column if entry and entry.mean == entry.mean), default=None)
            for column in zip(*entries, strict=True)]
    return [[entry and replace(entry, best=entry.mean == top)
             for entry, top in zip(row, best, strict=True)] for row in entries]
