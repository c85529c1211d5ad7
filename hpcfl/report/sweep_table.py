"""``hpcfl table``: runs in rows and columns by keys, mean ± standard deviation over seeds."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pandas import DataFrame, Series, concat

from hpcfl.errors import UserError
from hpcfl.files.wording import list_first
from hpcfl.report import comparison, search_spending, table_formats
from hpcfl.report.arrangement import Arrangement, arrange
from hpcfl.report.comparison import Reference
from hpcfl.report.metric_values import (
    BEST,
    At,
    Reading,
    describe_column,
    describe_missing,
    find_time_to,
    read_value,
    read_virtual_seconds,
    resolve_metric,
    resolve_recorded,
)
from hpcfl.report.search_spending import SEARCHES
from hpcfl.report.table_formats import MISSING, Table
from hpcfl.report.text import (
    NAMED,
    escape,
    format_clients,
    literal,
    make_console,
    warn_of_other_clients,
)
from hpcfl.scores.metric_names import Measure, strip_held_out
from hpcfl.storage.tune_folder import SPENT
from hpcfl.trained import loading
from hpcfl.trained.run import describe_gaps

UNREACHED = "not reached"  # text of an entry that did not reach the target
# Title of the rounds at which numbers are read, by ``Reading.at``.
ROUNDS = {
    "best": "at each run's best round by {best_by} samples",
    "last": "of the last round",
    "tail": "as mean of the last tenth of the rounds",
}
# Keys that make runs hard to compare if they differ.
NOTED = ("versions.hpcfl", "commit", "runtime.precision", "rounds")
# By column of the frame of runs the note to print if the column's values differ.
DIFFERENCES = {
    "best_by": "best rounds are chosen on different samples: {}",
    "best_metric": "best rounds are chosen by different metrics: {}",
    "models": "each method's own models: {}; --metric post/{number} is the same for all",
    **{key: f"these runs differ in {key}: {{}}" for key in NOTED},
}
ONE_PARTITION = (
    "all seeds share one partition, so ± excludes the variation between partitions; "
    "leave out partition.seed to give each seed a separate partition"
)
OTHER_PARTITIONS = (
    "the rows have different partitions; --against compares only common ones"
)
EXPLANATION = (
    "rows and columns are keys in which the runs differ; --rows and --columns choose other "
    "keys; an entry is the mean ± sample standard deviation over runs that differ only in "
    "their seeds; (2) marks an entry with only two runs; bold is the best of a column",
    "without --metric the table shows the primary metric (evaluation.metric) in each "
    "method's own column, before local training (pre) or after it (post), on the clients' "
    "test samples; --metric validation shows it on held-out training samples",
    "the best round of a run has the best primary metric on the samples that the title "
    "names; --at last reads the last round, --at tail the mean of the last tenth",
)
LOWER_IS_BETTER = (
    "seconds",
    "bytes",
    "floats",
    "sample_gradients",
    "std",
)  # words in the names of recorded numbers that are not scores


def show(
    folders: Sequence[Path],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    reading: Reading = BEST,
    form: str = "terminal",
    explain: bool = False,
    against: Reference | None = None,
) -> None:
    """Print the table of the finished runs in and below some folders.

    Args:
        folders: Folders to search for runs.
        rows: Keys of the rows, as for ``arrange``.
        columns: Keys of the columns, as for ``arrange``.
        reading: Metric and rounds at which it is read.
        form: "terminal" or a key of ``table_formats.TEXTS``.
        explain: Whether to print notes that explain the numbers.
        against: Reference to compare all rows with; None to show their numbers.

    Raises:
        UserError: If options exclude each other, or as for ``arrange`` and ``make``.
    """
    reads_round = reading.at != "best" or against is not None
    if reading.target is not None and reads_round:
        raise UserError(
            "--time-to: reads the time of the whole run; leave out --at, --at-virtual and "
            "--against"
        )
    runs, notes = loading.load_runs_below(folders)
    arranged = arrange(runs, rows, columns)
    if explain and against is None:
        notes += EXPLANATION
    for run in arranged.runs:
        metric = resolve_metric(run, reading.metric or run.metric)
        notes += [*run.notes, *describe_gaps(run, metric.column)]
    notes = list(dict.fromkeys(notes))
    if against is None:
        table = make(arranged, reading)
        table = replace(table, notes=[*table.notes, *notes])
        _print(table, form)
        notes = list(table.notes) if form == "csv" else []
    else:
        notes += [*arranged.notes, *_list_ended(arranged, reading.at)]
        tables = compare(arranged, reading, against)
        if form == "csv":
            tables = [_join(tables)]
            notes += tables[0].notes
        for number, table in enumerate(tables):
            if number:
                print()
            _print(table, form)
    for note in notes:  # stderr keeps them out of tables for other programs
        print(escape(f"note: {note}"), file=sys.stderr)


def _join(tables: Sequence[Table]) -> Table:
    """Return a table with the numbers and notes of all tables, for CSV."""
    notes: list[str] = []
    for table in tables:
        notes += table.notes
    numbers = concat([table.numbers for table in tables])
    return replace(tables[0], numbers=numbers, notes=notes)


def _print(table: Table, form: str) -> None:
    """Print a table in a format."""
    if form != "terminal":
        print(table_formats.TEXTS[form](table))
        return
    console = make_console()
    cells = table_formats.fit_width(table, console)
    for part in (literal(table.title), *cells, *map(literal, table.notes)):
        console.print(part)
    widths = [table_formats.measure_width(one, console) for one in cells]
    if max(widths) > console.width:
        note = (
            f"note: cut to the terminal's {console.width} columns; --format markdown "
            "and csv print whole tables, --rows and --columns choose the keys"
        )
        console.print(literal(note), soft_wrap=True)


def compare(arranged: Arrangement, reading: Reading, against: Reference) -> list[Table]:
    """Return a table for each column that compares all rows with a reference.

    Its notes include the properties in which the runs of the column differ.

    Args:
        arranged: Runs in rows and columns.
        reading: Metric and rounds at which it is read.
        against: Reference and options of the comparison.

    Raises:
        UserError: If the metric is not a per-client score, or as for ``make``.
    """
    reading = reading.resolve(arranged.runs)
    frame = _read(arranged, reading)
    name, _ = resolve_recorded(arranged.runs, reading.metric)
    tables = []
    for column in arranged.columns:
        table = comparison.make_table(arranged, column, against, reading)
        of_column = frame[frame["column"] == column]
        best_by = " or ".join(sorted(set(of_column["best_by"])))
        rounds = _describe_rounds(reading, False, best_by)
        differences = _describe_differences(arranged, of_column, name.number)
        table = replace(
            table,
            title=f"{table.title}, {rounds}",
            notes=[*table.notes, *differences],
        )
        tables.append(table)
    return tables


def make(arranged: Arrangement, reading: Reading = BEST) -> Table:
    """Return the table of the finished runs. Its notes list the runs left out.

    Args:
        arranged: Runs in rows and columns.
        reading: Metric and rounds at which it is read.

    Raises:
        UserError: If no run has recorded the metric.
    """
    reading = reading.resolve(arranged.runs)
    metric, at = reading.metric, reading.at
    name, measure = resolve_recorded(arranged.runs, metric)
    frame = _read(arranged, reading)
    entries = _summarise(frame, _find_better(str(name), measure, reading.target))
    # Sort entries like the rows and columns of the table.
    cells = [(row, column) for row in arranged.rows for column in arranged.columns]
    entries = entries.reindex([cell for cell in cells if cell in entries.index])
    notes = [
        *arranged.notes,
        *describe_missing(frame.loc[frame["value"].isna(), "label"], metric),
        *_warn(arranged, frame, name.number),
        *_list_ended(arranged, at),
    ]
    percent = measure is not None and measure.is_percent
    unit, form, missing = (" in %", ".2f", MISSING) if percent else ("", ".4g", MISSING)
    if reading.target is not None:
        unit, form, missing = "", ",.1f", UNREACHED
    best_by = " or ".join(sorted(set(entries["best_by"])))
    rounds = _describe_rounds(reading, percent, best_by)
    texts = _lay_out(_write_entries(entries, form, missing), arranged, MISSING)
    best = _lay_out(entries["best"], arranged, False)
    numbers = entries.drop(columns=["best", "none"]).reset_index()
    numbers.insert(2, "metric", metric)
    is_named = isinstance(at, str) and reading.target is None
    numbers.insert(3, "at", at if is_named else rounds)
    shares = search_spending.find_shares(arranged)
    if shares:
        texts[SPENT] = [search_spending.write_share(shares[row]) for row in texts.index]
        best[SPENT] = False
        numbers[SPENT] = numbers["row"].map(shares)
    if counts := search_spending.count_searches(arranged):
        texts[SEARCHES] = [str(counts[row]) for row in texts.index]
        best[SEARCHES] = False
        numbers[SEARCHES] = numbers["row"].map(counts)
    called = f"{measure.name}{describe_column(name, metric)}" if measure else metric
    repeated = max(counts.values(), default=1)
    title = f"{called}{unit} {rounds}{_describe_entries(entries, repeated)}"
    return Table(title=title, texts=texts, best=best, numbers=numbers, notes=notes)


def _find_better(
    name: str, measure: Measure | None, target: float | None
) -> Literal["min", "max"] | None:
    """Return which means of a number are better; None if it is unknown."""
    if target is not None:
        return "min"
    if measure is not None:
        return "min" if measure.better == "down" else "max"
    if any(word in name for word in LOWER_IS_BETTER):
        return "min"
    return None


def _read(arranged: Arrangement, reading: Reading) -> DataFrame:
    """Return a frame with a row for each run.

    A row has the run's place in the table, its label, the value of the metric, the number
    in the displayed unit, and the properties that must agree for numbers to be
    comparable. With a target the number is the virtual seconds until the metric reached
    it.
    """
    metric, at, target = reading.metric, reading.at, reading.target
    lines = []
    for placed in arranged.placed:
        run, setting = placed.run, placed.setting
        named = resolve_metric(run, metric)
        number = read_value(run, metric, at if target is None else "last")
        shown = named.factor * number.value
        if target is not None:
            shown = find_time_to(run, metric, target)
        reads_best = (at, target) == ("best", None)
        line = {
            "row": placed.row,
            "column": placed.column,
            "label": run.label,
            "value": number.value,
            "number": shown,
            "clients": number.clients,
            "models": strip_held_out(named.column) or None,
            "best_by": run.summary.best_by if reads_best else "",
            "best_metric": run.metric if reads_best else "",
            "partition": comparison.find_partition(placed),
        }
        lines.append(line | {key: setting.get(key) for key in NOTED})
    return DataFrame(lines)


def _summarise(frame: DataFrame, better: Literal["min", "max"] | None) -> DataFrame:
    """Return a row for each entry of the table, by row and column.

    Args:
        frame: Frame with a row for each run, as ``_read`` returns it.
        better: The direction of better means, from ``_find_better``.

    Returns:
        Frame with ``mean`` and sample standard deviation ``std`` over the runs (NaN if
        a run lacks the number), ``runs`` (number of runs), ``none`` (number of runs
        without the number), ``clients``, ``best_by`` (samples that choose the best
        round) and ``best`` (whether the mean is the best of its column).
    """
    entries = frame.groupby(["row", "column"], sort=False).agg(
        mean=("number", lambda numbers: numbers.mean(skipna=False)),
        std=("number", lambda numbers: numbers.std(skipna=False)),
        runs=("number", "size"),
        none=("number", lambda numbers: int(numbers.isna().sum())),
        clients=("clients", format_clients),
        best_by=("best_by", lambda samples: " or ".join(sorted(set(samples)))),
    )
    entries["best"] = False
    if better is not None:
        means = entries.groupby("column")["mean"]
        entries["best"] = entries["mean"] == means.transform(better)
    return entries


def _write_entries(entries: DataFrame, form: str, missing: str) -> Series:
    """Return the entries as texts such as ``85.31 ± 0.42``.

    An entry with 2 runs ends with ``(2)`` if other entries have more.

    Args:
        entries: Entries, as ``_summarise`` returns them.
        form: Format of a number.
        missing: Text of an entry in which a run lacks the number.
    """
    most_runs = entries["runs"].max()

    def write(entry: Series) -> str:
        if entry["none"]:
            has_some = missing != MISSING and entry["none"] < entry["runs"]
            part = f" ({entry['none']} of {entry['runs']})" if has_some else ""
            return missing + part
        text = f"{entry['mean']:{form}}"
        if entry["runs"] > 1:
            text += f" ± {entry['std']:{form}}"
        return f"{text} ({entry['runs']})" if entry["runs"] < most_runs else text

    return entries.apply(write, axis=1)


def _lay_out(of_entries: Series, arranged: Arrangement, missing: object) -> DataFrame:
    """Return the numbers or texts of all entries as a frame, rows × columns."""
    table = of_entries.unstack(fill_value=missing)
    table = table.reindex(arranged.rows, columns=arranged.columns, fill_value=missing)
    return table.rename_axis(index=None, columns=None)


def _describe_rounds(reading: Reading, is_percent: bool, best_by: str) -> str:
    """Return the part of a title on the rounds at which numbers are read."""
    if reading.target is not None:
        target = f"{reading.target:g}{' %' if is_percent else ''}"
        return f"reaches {target} after these seconds of virtual time"
    if not isinstance(reading.at, str):
        return f"by {reading.at:g} s of virtual time"
    return ROUNDS[reading.at].format(best_by=best_by)


def _describe_entries(entries: DataFrame, searches: int) -> str:
    """Return the part of a title on the numbers of clients, seeds and searches."""
    counts = set(entries["clients"]) - {""}
    clients = f", of {counts.pop()} clients" if len(counts) == 1 else ""
    seeds = entries["runs"].max()
    if seeds == 1:
        return f"{clients}, one seed"
    repetitions = f"{seeds} seeds"
    if searches > 1:
        repetitions = f"{seeds} runs of {searches} searches"
    return f"{clients}, mean ± sample standard deviation over {repetitions}"


def _describe_differences(
    arranged: Arrangement, frame: DataFrame, number: str
) -> list[str]:
    """Return a note on each property of ``DIFFERENCES`` in which runs differ."""
    notes = []
    for key, text in DIFFERENCES.items():
        labels = frame.dropna(subset=key).groupby(key, sort=False)["row"].unique()
        if len(labels) > 1 and key not in arranged.down:
            contents = (
                f"{content} ({list_first(rows, NAMED)})"
                for content, rows in labels.items()
            )
            notes.append(text.format(", ".join(contents), number=number))
    return notes


def _warn(arranged: Arrangement, frame: DataFrame, number: str) -> list[str]:
    """Return notes on properties in which the runs of one table differ."""
    notes = _describe_differences(arranged, frame, number)
    partitions = frame.groupby(["column", "row"])["partition"].agg(["size", "nunique"])
    shared = (partitions["size"] > 1) & (partitions["nunique"] == 1)
    for column, entries in frame.groupby("column", sort=False):
        if shared[column].any():
            notes.append(f"{column}: {ONE_PARTITION}")
        if entries.groupby("row")["partition"].agg(frozenset).nunique() > 1:
            notes.append(f"{column}: {OTHER_PARTITIONS}")
        clients = entries.groupby("row", sort=False)["clients"].agg(format_clients)
        warning = warn_of_other_clients(clients.to_dict())
        if warning:
            notes.append(f"{column}: {warning}")
    return notes


def _list_ended(arranged: Arrangement, at: At) -> list[str]:
    """Return a note on rows with a run that ended before the virtual time ``at``."""
    if isinstance(at, str):
        return []
    ended = dict.fromkeys(
        placed.row
        for placed in arranged.placed
        if read_virtual_seconds(placed.run, "post")[-1] < at
    )
    return [f"ended before {at:g} s: {list_first(list(ended), NAMED)}"] if ended else []
