"""``hpcfl table``: runs in rows and columns by any keys, mean ± standard deviation over
seeds.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.measure import Measurement

from hpcfl.errors import UserError
from hpcfl.report import comparison, search_spending, table_formats
from hpcfl.report.arrangement import Arrangement, Placed, arrange
from hpcfl.report.comparison import Reference
from hpcfl.report.grid import Grid, Sheet
from hpcfl.report.metric_values import (
    VALIDATION,
    At,
    read_at,
    refuse_unknown,
    resolve_metric,
    time_to,
    value,
    where_read,
)
from hpcfl.report.series import virtual_seconds
from hpcfl.report.text import (
    WIDEST,
    clients_text,
    list_first,
    literal,
    plain,
    stdout_console,
    warn_of_other_clients,
)
from hpcfl.scores.metric_names import Measure, models_of
from hpcfl.trained import loading
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    import pandas

# Keys that make runs hard to compare where they differ.
NOTED = ("versions.hpcfl", "commit", "runtime.precision")
# By a column of the frame of runs the note on its different contents.
DIFFERENCES = {
    "best_by": "best rounds are chosen on different samples: {}",
    "models": "each method's own models: {}; --metric post/{number} is the same for all",
    **{key: f"these runs differ in {key}: {{}}" for key in NOTED},
}
ONE_PARTITION = (
    "all seeds have the same partition, so that ± says nothing about others; "
    "without partition.seed each has its own"
)
EXPLANATION = (
    "rows and columns are keys in which the runs differ, --rows and --columns choose others; "
    "an entry is the mean ± sample standard deviation over runs that differ in nothing but their "
    "seeds, and (2) says that there are only two; bold is the best of a column",
    "without --metric it is the number that counts (evaluation.metric) in each method's own "
    "column, before local training (pre) or after it (post), on the clients' own test "
    "samples; --metric validation is the same on training samples that were held out",
    "a run's best round is the best of all in which that number was scored, by the samples "
    "that the title names; --at last is the last round, --at tail the mean of the last tenth",
)
LOWER_IS_BETTER = (
    "seconds",
    "bytes",
    "floats",
    "sample_gradients",
    "std",
)  # in names of recorded numbers that are no scores


@dataclass(frozen=True)
class Reading:
    """The numbers of a table.

    Attributes:
        metric: A recorded number such as ``post/mean`` or ``seconds/round``; or, in the
            column that counts, a score (``accuracy``), SCORE/SUMMARY, or a recorded
            name such as ``macro_f1_std``; "" for the one that counts in the first run;
            "validation" for the one that counts in each, on held-out training samples.
        at: Where it is read in a run: "best", "last" or "tail" (see
            ``storage/result_rounds.py``), or after so many seconds of the clients' own time.
        target: In place of the number the seconds of the clients' own time until it is
            as good as this, in the unit in which it is shown.
    """

    metric: str = ""
    at: At = "best"
    target: float | None = None


def show(
    folders: Sequence[Path],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    reading: Reading = Reading(),
    form: str = "terminal",
    explain: bool = False,
    against: Reference | None = None,
) -> None:
    """Print the table of the finished runs below folders.

    form: terminal, one of ``TEXTS``, or clients, which is a CSV of every client's
    numbers in every run. explain: whether notes say what the numbers are. against: what
    to compare all rows with, in place of showing their numbers.

    The other arguments are those of ``make``. Raises UserError.
    """
    _refuse_with_target(reading, form == "clients" or against is not None)
    runs, notes = loading.runs_below(folders)
    if form == "clients":
        print(_write_clients(runs, reading))
        return _print_notes(notes)
    if against is None:
        grid = make(runs, rows, columns, reading)
        grid.notes.extend([*notes, *(EXPLANATION if explain else ())])
        return _print(grid, form)
    sheets = compared(runs, rows, columns, reading, against)
    for number, of_column in enumerate(sheets):
        if number and form != "csv":
            print()
        _print(of_column, form, headings=number == 0)
    _print_notes(notes)


def _refuse_with_target(reading: Reading, other: bool) -> None:
    """Raise UserError where seconds are asked for together with what they are not
    ``other`` than: a round, or clients.
    """
    if reading.target is None:
        return
    if other or reading.at != "best":
        raise UserError(
            "--time-to: is the time of a whole run; leave out --at, --at-virtual, "
            "--against and --format clients"
        )


def _print(table: Grid | Sheet, form: str, headings: bool = True) -> None:
    """Print a table in one of the formats; ``headings`` for the first of several."""
    if form == "terminal":
        console = stdout_console()
        console.print(table_formats.terminal(table))
        boundless = console.options.update(max_width=WIDEST)
        cells = table_formats.cells_of(table)
        if Measurement.get(console, boundless, cells).maximum > console.width:
            console.print(
                literal(
                    f"note: cut to the terminal's {console.width} columns; --format markdown "
                    "and csv are not, --rows and --columns choose the keys"
                ),
                soft_wrap=True,
            )
        return
    text = table_formats.TEXTS[form](table)
    if form == "csv":
        print(text if headings else text.partition("\n")[2])
        _print_notes(table.notes)
    else:
        print(text)


def compared(
    runs: list[Run],
    rows: Sequence[str],
    columns: Sequence[str],
    reading: Reading,
    against: Reference,
) -> list[Sheet]:
    """Return a table for each column, in which all rows are compared with one of them.

    The arguments are as for ``make``. Raises UserError.
    """
    metric = reading.metric or runs[0].metric
    arranged = arrange(runs, rows, columns)
    refuse_unknown(arranged.runs, metric)
    measure, models = _choose_score(arranged, metric)
    sheets = []
    for column in arranged.columns:
        at = read_at(metric, reading.at)
        sheet = comparison.sheet(arranged, column, against, measure, at, models)
        sheets.append(sheet)
    return sheets


def _choose_score(arranged: Arrangement, metric: str) -> tuple[Measure, str]:
    """Return the score of a metric and the models that it names, "" for each run's own.
    Raises UserError for a number that is no client's.
    """
    name, measure = resolve_metric(arranged.runs[0], metric)
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--against compares clients by a score of theirs, and {metric} is none"
        )
    if metric == VALIDATION:
        return measure, VALIDATION
    return measure, name.column if metric == str(name) else ""


def _print_notes(notes: Sequence[str]) -> None:
    """Print notes where they are not part of a table for other programs, which has no
    place for them.
    """
    for note in notes:
        print(plain(f"note: {note}"), file=sys.stderr)


def _write_clients(runs: list[Run], reading: Reading) -> str:
    """Return the numbers of all clients of each run in its primary rounds, as CSV."""
    import pandas

    refuse_unknown(runs, reading.metric or runs[0].metric)
    chosen = {}
    for run in runs:
        read = where_read(run, reading.metric or run.metric, reading.at)
        rounds = run.results.rounds[read].tolist()
        chosen[str(run.folder)] = run.clients().loc[rounds]
    return str(pandas.concat(chosen, names=["run"]).to_csv()).rstrip("\n")


def make(
    runs: list[Run],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    reading: Reading = Reading(),
) -> Grid:
    """Return the table of the finished runs; its notes name those left out.

    Args:
        runs: At least one.
        rows: Dotted keys of the configuration; by default the method, and whatever else
            differs between runs.
        columns: Dotted keys of the configuration; by default data set and partition.
        reading: Which numbers.

    Raises:
        UserError: No run is finished, or none has such keys or numbers.
    """
    metric = reading.metric or runs[0].metric
    at = read_at(metric, reading.at)
    arranged = arrange(runs, rows, columns)
    refuse_unknown(arranged.runs, metric)
    name, measure = resolve_metric(arranged.runs[0], metric)
    percent = measure is not None and measure.percent
    if measure is None:
        lower = any(word in str(name) for word in LOWER_IS_BETTER)
    else:
        lower = measure.better == "down"
    frame = _read(arranged, metric, at, reading.target)
    notes = [*arranged.notes, *_warn(arranged, frame, name.number)]
    rounds = at if isinstance(at, str) else f"by {at:g} s of the clients' own time"
    if not isinstance(at, str):
        notes += _list_ended(arranged, at)
    if reading.target is not None:
        shown = f"{reading.target:g}{' %' if percent else ''}"
        rounds = f"reaches {shown} after these seconds of the clients' own time"
        percent, lower = False, True
    return Grid(
        _summarise(frame, lower),
        arranged.rows,
        arranged.columns,
        metric,
        percent,
        rounds,
        notes,
        until=reading.target is not None,
        spent=_find_spent(arranged),
    )


def _find_spent(arranged: Arrangement) -> dict[str, float]:
    """Return the budgets that each row's search took, of rows that a tuning chose."""
    runs: dict[str, list[Run]] = {}
    for (row, _), run in zip(arranged.places, arranged.runs, strict=True):
        runs.setdefault(row, []).append(run)
    shares = {row: search_spending.find_share(of_row) for row, of_row in runs.items()}
    return {row: share for row, share in shares.items() if share is not None}


def _read(
    arranged: Arrangement, metric: str, at: At, target: float | None
) -> "pandas.DataFrame":
    """Return a row for each run: its place in the table, its number as it is shown, and
    all that should be alike for numbers to be compared.

    target: replaces the number by the seconds until it is as good as this.
    """
    import pandas

    lines = []
    for (row, column), (run, setting) in zip(
        arranged.places, arranged.placed, strict=True
    ):
        column_read, measure = resolve_metric(run, metric)
        number = value(run, metric, at if target is None else "last")
        shown = number.value * (measure.factor if measure else 1)
        if target is not None:
            shown = time_to(run, metric, target).seconds
        line = {
            "row": row,
            "column": column,
            "number": shown,
            "clients": number.clients,
            "models": models_of(column_read.column),
            "best_by": run.summary.best_by if (at, target) == ("best", None) else "",
            "partition": comparison.partition_of(Placed(run, setting)),
        }
        lines.append(line | {key: setting.get(key) for key in NOTED})
    return pandas.DataFrame(lines)


def _summarise(frame: "pandas.DataFrame", lower: bool) -> "pandas.DataFrame":
    """Return the entries of a ``Grid``; a number that one repetition lacks has no mean.

    lower: whether lower means are better.
    """
    entries = frame.groupby(["row", "column"], sort=False).agg(
        mean=("number", lambda numbers: numbers.mean(skipna=False)),
        std=("number", lambda numbers: numbers.std(skipna=False)),
        runs=("number", "size"),
        none=("number", lambda numbers: int(numbers.isna().sum())),
        clients=("clients", clients_text),
        best_by=("best_by", lambda samples: " or ".join(sorted(set(samples)))),
    )
    means = entries.groupby("column")["mean"]
    entries["best"] = entries["mean"] == means.transform("min" if lower else "max")
    return entries


def _warn(arranged: Arrangement, frame: "pandas.DataFrame", number: str) -> list[str]:
    """Return notes on numbers of one table that differ in more than their keys."""
    notes = []
    for key, text in DIFFERENCES.items():
        labels = frame.dropna(subset=key).groupby(key, sort=False)["row"].unique()
        if len(labels) > 1 and key not in arranged.down:
            contents = (
                f"{content} ({list_first(rows)})" for content, rows in labels.items()
            )
            notes.append(text.format(", ".join(contents), number=number))
    partitions = frame.groupby(["column", "row"])["partition"].agg(["size", "nunique"])
    shared = (partitions["size"] > 1) & (partitions["nunique"] == 1)
    for column, entries in frame.groupby("column", sort=False):
        if shared[column].any():
            notes.append(f"{column}: {ONE_PARTITION}")
        clients = entries.groupby("row", sort=False)["clients"].agg(clients_text)
        warning = warn_of_other_clients(clients.to_dict())
        if warning:
            notes.append(f"{column}: {warning}")
    return notes


def _list_ended(arranged: Arrangement, at: float) -> list[str]:
    """Return a note on rows whose runs ended before the time at which they are read."""
    ended = []
    for (row, _), run in zip(arranged.places, arranged.runs, strict=True):
        if virtual_seconds(run, "post")[-1] < at and row not in ended:
            ended.append(row)
    return [f"ended before {at:g} s: {list_first(ended)}"] if ended else []
