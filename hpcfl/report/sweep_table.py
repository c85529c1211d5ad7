"""``hpcfl table``: runs in rows and columns by any keys, with mean ± standard deviation
over seeds.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.measure import Measurement

from hpcfl.errors import UserError
from hpcfl.report import (
    comparison,
    frames,
    search_spending,
    summary,
    table_formats,
)
from hpcfl.report.arrangement import OF_DATA, Arrangement, arrange, label
from hpcfl.report.client_counts import clients_text, few, mixed
from hpcfl.report.grid import Grid, Sheet
from hpcfl.report.reading import (
    VALIDATION,
    At,
    named,
    read_at,
    refuse_unknown,
    time_to,
    tuned_in,
    value,
    where_read,
)
from hpcfl.report.summary import Run
from hpcfl.report.text import WIDEST, literal, plain, stdout_console
from hpcfl.report.virtual_time import seconds_of
from hpcfl.scores._described import Measure
from hpcfl.scores._metric_name import MetricName, held_out, models_of

if TYPE_CHECKING:
    import pandas

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
    "an entry is the mean ± sample standard deviation over runs that differ in nothing but their "
    "seeds, and (2) says that there are only two; bold is the best of a column",
    "without --metric it is the number that counts (evaluation.metric) in each method's own "
    "column, before local training (pre) or after it (post), on the clients' own test "
    "samples; --metric validation is the same on training samples that were held out",
    "a run's best round is the best of all in which that number was scored, by the samples "
    "that the title names; --at last is the last round, --at tail the mean of the last tenth",
)
COMPARE = "for differences between rows, with intervals over partitions: --against ROW"
MODELS = {"pre": "before local training", "post": "after it"}
LOWER_IS_BETTER = (
    "seconds",
    "bytes",
    "floats",
    "sample_gradients",
    "std",
)  # in names of recorded numbers that are no scores


@dataclass(frozen=True)
class Reference:
    """A row that all others are compared with.

    Attributes:
        row: Its label.
        margin: Differences below it count as none, in the unit that is shown.
        power: A difference, in the same unit, of which is said how many partitions it
            needs.
        pairs: Whether a test over pairs of client and seed stands beside the intervals.
    """

    row: str
    margin: float = comparison.MARGIN
    power: float | None = None
    pairs: bool = False


@dataclass(frozen=True)
class Reading:
    """Which numbers a table has.

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
    runs, notes = summary.runs_below(folders)
    if form == "clients":
        print(_of_clients(runs, reading))
        return _to_errors(notes)
    if against is None:
        grid = make(runs, rows, columns, reading)
        grid.notes.extend([*notes, *(EXPLANATION if explain else ())])
        if form == "terminal" and _can_compare(grid):
            grid.notes.append(COMPARE)
        return _print(grid, form)
    sheets = compared(runs, rows, columns, reading, against)
    for number, of_column in enumerate(sheets):
        if number and form != "csv":
            print()
        _print(of_column, form, headings=number == 0)
    _to_errors(notes)


def _can_compare(grid: Grid) -> bool:
    """Whether rows stand beside each other in several repetitions."""
    return len(grid.rows) > 1 and bool((grid.entries["runs"] > 1).any())


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
        _to_errors(table.notes)
    else:
        print(text)


def compared(
    runs: list[Run],
    rows: Sequence[str],
    columns: Sequence[str],
    reading: Reading,
    against: Reference,
) -> list[Sheet]:
    """A table for each column, in which all rows stand beside one of them.

    The arguments are as for ``make``. Raises UserError.
    """
    metric = reading.metric or runs[0].metric
    arranged = arrange(runs, rows, columns)
    refuse_unknown(arranged.runs, metric)
    measure, models = _of_clients_score(arranged, metric)
    return [
        comparison.sheet(
            arranged,
            column,
            against.row,
            measure,
            read_at(metric, reading.at),
            models,
            against.margin,
            against.power,
            against.pairs,
        )
        for column in arranged.columns
    ]


def _of_clients_score(arranged: Arrangement, metric: str) -> tuple[Measure, str]:
    """Return the score of a metric and the models that it names, "" for each run's own.
    Raises UserError for a number that is no client's.
    """
    name, measure = named(arranged.runs[0], metric)
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--against compares clients by a score of theirs, and {metric} is none"
        )
    if metric == VALIDATION:
        return measure, VALIDATION
    return measure, name.column if metric == str(name) else ""


def _to_errors(notes: Sequence[str]) -> None:
    """Print notes where they are not part of a table for other programs, which has no
    place for them.
    """
    for note in notes:
        print(plain(f"note: {note}"), file=sys.stderr)


def _of_clients(runs: list[Run], reading: Reading) -> str:
    """Of each run the numbers of all clients in the rounds that count there, as CSV."""
    import pandas

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
    """The table of the finished runs; those left out are named in its notes.

    Args:
        runs: At least one.
        rows: Dotted keys of the configuration; by default the method, and whatever else
            differs between runs.
        columns: Dotted keys of the configuration; by default data set and partition.
        reading: Which numbers.

    Raises:
        UserError: Where nothing is finished, or nobody has such keys or numbers.
    """
    metric = reading.metric or runs[0].metric
    at = read_at(metric, reading.at)
    arranged = arrange(runs, rows, columns)
    refuse_unknown(arranged.runs, metric)
    name, measure = named(arranged.runs[0], metric)
    if measure is None:
        lower = any(word in str(name) for word in LOWER_IS_BETTER)
    else:
        lower = measure.better == "down"
    if reading.target is not None:
        return _of_times(arranged, metric, reading.target)
    frame = _numbers(arranged, metric, at)
    notes = [
        *arranged.notes,
        *_mixed_choices(frame),
        *_mixed_models(arranged, frame, name.number, metric == VALIDATION),
        *_one_partition(arranged, frame),
        *_mixed_origins(arranged, frame),
        *_mixed_populations(arranged, frame),
        *_ended(arranged, at),
    ]
    return Grid(
        _entries(frame, measure.factor if measure else 1, lower),
        arranged.rows,
        arranged.columns,
        metric,
        measure.kind if measure else "",
        measure is not None and measure.percent,
        at if isinstance(at, str) else f"by {at:g} s of the clients' own time",
        notes,
        spent=_spent(arranged),
    )


def _spent(arranged: Arrangement) -> dict[str, float]:
    """Return the budgets that each row's search took, of rows that a tuning chose."""
    runs: dict[str, list[Run]] = {}
    for (row, _), run in zip(arranged.places, arranged.runs, strict=True):
        runs.setdefault(row, []).append(run)
    shares = {row: search_spending.of_runs(of_row) for row, of_row in runs.items()}
    return {row: share for row, share in shares.items() if share is not None}


def _of_times(arranged: Arrangement, metric: str, target: float) -> Grid:
    """Return the table of the clients' seconds until a number is as good as ``target``.
    Raises UserError.
    """
    frame = _numbers(arranged, metric, "last")
    frame["number"] = [time_to(run, metric, target).seconds for run in arranged.runs]
    frame["best_by"] = ""
    measure = named(arranged.runs[0], metric).measure
    percent = " %" if measure is not None and measure.percent else ""
    notes = [*arranged.notes, *_one_partition(arranged, frame)]
    return Grid(
        _entries(frame, 1, lower=True),
        arranged.rows,
        arranged.columns,
        metric,
        "",
        False,
        f"reaches {target:g}{percent} after these seconds of the clients' own time",
        [*notes, *_mixed_origins(arranged, frame)],
        until=True,
    )


def _numbers(arranged: Arrangement, metric: str, at: At) -> "pandas.DataFrame":
    """A row for each run: its place in the table, its number with the clients and the
    models that this is of, and the samples that chose its best round.
    """
    import pandas

    lines = []
    for (row, column), run in zip(arranged.places, arranged.runs, strict=True):
        number = value(run, metric, at)
        lines.append(
            {
                "row": row,
                "column": column,
                "number": number.value,
                "clients": number.clients,
                "models": models_of(named(run, metric).column),
                "best_by": run.summary.best_by if at == "best" else "",
            }
        )
    return pandas.DataFrame(lines)


def _entries(frame: "pandas.DataFrame", factor: int, lower: bool) -> "pandas.DataFrame":
    """Return the entries of a ``Grid``: means and sample standard deviations.

    Args:
        frame: What ``_numbers`` returns.
        factor: What numbers are multiplied by to be shown.
        lower: Whether lower means are better.
    """

    # Those of numpy: pandas leaves out what is NaN.
    def mean(numbers: "pandas.Series[float]") -> float:
        return float((factor * numbers.to_numpy()).mean())

    def std(numbers: "pandas.Series[float]") -> float:
        if len(numbers) < 2:
            return math.nan
        return float((factor * numbers.to_numpy()).std(ddof=1))

    entries = frame.groupby(["row", "column"], sort=False).agg(
        mean=("number", mean),
        std=("number", std),
        runs=("number", "size"),
        none=("number", lambda numbers: int(numbers.isna().sum())),
        clients=("clients", clients_text),
        best_by=("best_by", lambda samples: " or ".join(sorted(set(samples)))),
    )
    means = entries.groupby("column")["mean"]
    entries["best"] = entries["mean"] == means.transform("min" if lower else "max")
    return entries


def _labels_by(
    frame: "pandas.DataFrame", key: str, axis: str = "row"
) -> dict[str, list[str]]:
    """The labels of the rows, or of the columns, in which a column of the frame has a
    value, by that value; without those where it is None.
    """
    labels = frame.groupby(key, sort=False)[axis].unique()
    return {name: list(of_name) for name, of_name in labels.items()}


def _mixed_choices(frame: "pandas.DataFrame") -> list[str]:
    """A note where the best rounds of some runs were chosen on other samples than those
    of others.
    """
    rows = _labels_by(frame, "best_by")
    if len(rows) < 2:
        return []
    parts = [f"{samples} samples ({few(of)})" for samples, of in rows.items()]
    return [f"best rounds are chosen on {' and on '.join(parts)}"]


def _mixed_models(
    arranged: Arrangement, frame: "pandas.DataFrame", number: str, validation: bool
) -> list[str]:
    """A note where numbers are of each method's own models, for some before and for
    others after training.

    validation: whether they are of held-out samples.
    """
    labels = _labels_by(frame, "models")
    if len(labels) < 2:
        return []
    if sum(map(len, labels.values())) > frame["row"].nunique():
        # rows do not tell these models apart, but columns do
        labels = _labels_by(frame, "models", "column")
    others = sorted(labels.keys() - MODELS.keys())
    parts = [
        f"{MODELS.get(models, models)} ({few(labels[models])})"
        for models in (*MODELS, *others)
        if models in labels
    ]
    tuned_columns = [set(tuned_in(run)) for run in arranged.runs]
    tuned_in_all = set.intersection(*tuned_columns)
    same_moments = [
        column for column in tuned_in(arranged.runs[0]) if column in tuned_in_all
    ]
    column = same_moments[-1] if same_moments else "post"
    same = MetricName(number, held_out(column) if validation else column)
    return [
        f"each method's own models: {', '.join(parts)}; --metric {same} is of the same "
        "for all"
    ]


def _one_partition(arranged: Arrangement, frame: "pandas.DataFrame") -> list[str]:
    """A note on columns in which repetitions of an experiment all have one partition."""
    partitions = frame.assign(
        partition=[comparison.partition_of(placed) for placed in arranged.placed]
    )
    entries = partitions.groupby(["column", "row"])["partition"]
    counts = entries.agg(["size", "nunique"])
    shared = (counts["size"] > 1) & (counts["nunique"] == 1)
    columns = [column for column in arranged.columns if shared[column].any()]
    if columns == arranged.columns:
        return [ONE_PARTITION]
    return [f"{column}: {ONE_PARTITION}" for column in columns]


def _mixed_origins(arranged: Arrangement, frame: "pandas.DataFrame") -> list[str]:
    """A note for each thing that changes numbers, is none of the table's keys and not
    the same for all.
    """
    notes = []
    for key in NOTED:
        contents = [placed.setting.get(key) for placed in arranged.placed]
        texts = [None if content is None else str(content) for content in contents]
        rows = _labels_by(frame.assign(text=texts), "text")
        if len(rows) > 1 and key not in arranged.down:
            parts = [f"{text} ({few(labels)})" for text, labels in rows.items()]
            notes.append(f"these runs differ in {key}: {', '.join(parts)}")
    return notes


def _ended(arranged: Arrangement, at: At) -> list[str]:
    """A note on rows whose runs ended before the clients' time at which they are read."""
    if isinstance(at, str):
        return []
    ended = []
    for (row, _), run in zip(arranged.places, arranged.runs, strict=True):
        if seconds_of(run, "post")[-1] < at and row not in ended:
            ended.append(row)
    return [f"ended before {at:g} s: {few(ended)}"] if ended else []


def _mixed_populations(arranged: Arrangement, frame: "pandas.DataFrame") -> list[str]:
    """A warning for each data set and partition whose numbers are of different numbers
    of clients.
    """
    keys = [*arranged.across, *arranged.down]
    of_data = [key for key in keys if key.startswith(OF_DATA)]
    of_rest = [key for key in keys if not key.startswith(OF_DATA)]
    settings = [placed.setting for placed in arranged.placed]
    labelled = frame.assign(
        data=[label(setting, of_data) for setting in settings],
        rest=[label(setting, of_rest) for setting in settings],
    )
    warnings = []
    for data, of_one in labelled.groupby("data", sort=False):
        clients = of_one.groupby("rest", sort=False)["clients"].agg(clients_text)
        warning = mixed(clients.to_dict())
        if warning:
            warnings.append(f"{data}: {warning}")
    return warnings
