"""``hpcfl report``: an HTML page about runs without scripts or further files.

A run's folder may come from an untrusted source. The page therefore escapes all texts,
and its policy forbids scripts and network access. The page shows only the last name of
an absolute path, so that it reveals no folders of the machine.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pandas import DataFrame, MultiIndex, Series

from hpcfl import __version__
from hpcfl.errors import UserError
from hpcfl.experiment import experiment_file
from hpcfl.files import atomic, wording
from hpcfl.report import comparison, figures, lines, sweep_table
from hpcfl.report.arrangement import Arrangement, arrange
from hpcfl.report.comparison import Reference
from hpcfl.report.metric_values import BEST, VALIDATION, Reading, holds_out
from hpcfl.report.plots import curves
from hpcfl.report.sheet import Sheet, house_style
from hpcfl.report.table_formats import MISSING
from hpcfl.report.text import escape, shorten
from hpcfl.storage import run_folder
from hpcfl.storage.tune_folder import SPENT
from hpcfl.trained import loading
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH = 8.0  # width of a figure in inches
VALUES = 12  # number of values that are listed of a key
VALUE_LETTERS = 300  # maximum length of a value in letters
# Methods to compare with; the first one that was run is the reference.
REFERENCES = ("local", "fedavg")
# Keys of a results file that describe the software and the machine of a run.
ORIGIN = (
    "versions",
    "commit",
    "processor",
    "arithmetic",
    "gpus",
    "ranks",
    "command",
)
# Folders of a path that begins at the root or at a user's home.
FOLDER = r"/[^\s/'\":;,=<>]+"
FOLDERS = re.compile(rf"(?<![\w.…/])(?:~|{FOLDER})(?:{FOLDER})*/(?=[^\s/])")


def write(folders: Sequence[Path], out: Path) -> None:
    """Write a page about all runs in and below some folders.

    Args:
        folders: Folders to search for runs.
        out: Path of the page.

    Raises:
        UserError: If there is no run or ``out`` cannot name a file.
        RunFailure: If the file cannot be written.
    """
    figures.check_out(out)
    runs, notes = loading.load_runs_below(folders)
    page = render(runs, [*notes, *_list_waiting(folders)])
    atomic.write(out, page.encode())


def render(runs: list[Run], notes: Sequence[str] = ()) -> str:
    """Return the page about runs as HTML. The same runs give the same page.

    Args:
        runs: Runs to show.
        notes: Lines for the end of the page.
    """
    drawn = _choose_drawn(arrange(runs, unfinished=True))
    names = [_name_experiment(run) for run in runs]
    table, sentence, explanations = _tabulate(runs)
    return _read_template().render(
        title=_list_first(names),
        version=__version__,
        table=table,
        sentence=sentence,
        pictures=_draw_curves(drawn),
        ends=_explain_ends(drawn),
        explanations=[*explanations, *_list_events(runs), *notes],
        runs=runs,
        settings=_describe_settings(runs),
    )


def _name_experiment(run: Run) -> str:
    """Return the name of a run's experiment.

    It is the name of the run without the suffix that a sweep or a tuning adds: the label
    of the run, for a tuning without the seed.
    """
    name = str(run.config["name"])
    without_seed = run.label.rpartition(",")[0]
    for suffix in (run.label, without_seed):
        if suffix and name.endswith(f"-{suffix}"):
            return name.removesuffix(f"-{suffix}")
    return name


def _read_template() -> "Template":
    """Return the page's template. It escapes all texts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda content: (
            hide_folders(content) if type(content) is str else content
        ),
    )
    return environment.get_template("page.html")


def hide_folders(text: str) -> str:
    """Return a text on one line, with the folders of paths removed."""
    return FOLDERS.sub("…/", escape(text))


def _choose_drawn(arranged: Arrangement) -> Arrangement:
    """Keep the finished runs of each entry, or all of its runs if none is finished."""
    placed = []
    for cell in arranged.cells.values():
        finished = [one for one in cell if one.run.summary.finished]
        placed += finished or cell
    return replace(arranged, placed=placed)


def _tabulate(runs: list[Run]) -> tuple[DataFrame, str, list[str]]:
    """Return the table of the finished runs, the sentence below it and its notes.

    The best row of each data set comes first. The notes explain how the numbers were
    computed.
    """
    finished = [run for run in runs if run.summary.finished]
    if not finished:
        return DataFrame(), "No run is finished yet.", []
    arranged = arrange(finished)
    measure = finished[0].measure
    readings = {
        measure.name: BEST,
        f"{measure.name} of the last tenth of rounds": Reading(at="tail"),
    }
    if any(holds_out(run) for run in finished):
        readings[f"{measure.name} on held-out samples"] = Reading(VALIDATION)
    found = {
        heading: sweep_table.make(arranged, reading)
        for heading, reading in readings.items()
    }
    columns = {
        heading + measure.label_end: table.texts[arranged.columns].unstack()
        for heading, table in found.items()
    }
    gains, notes = _compare(arranged)
    first = found[measure.name]
    best_first = first.numbers.sort_values("mean", ascending=measure.better == "down")
    order = MultiIndex.from_frame(best_first[["column", "row"]])
    table = DataFrame(columns | gains).reindex(order).fillna(MISSING)
    table = table.loc[arranged.columns].reset_index("column", names="data")
    if len(arranged.columns) == 1:
        table = table.drop(columns="data")
    if SPENT in first.texts:
        table[SPENT] = table.index.map(first.texts[SPENT])
    seeds = first.numbers["runs"].max()
    repeated = f", ± the standard deviation over {seeds} seeds" if seeds > 1 else ""
    sentence = (
        f"Test {measure.name} of each method's own models in the best round{repeated}; "
        f"{len(finished)} of {len(runs)} runs are finished."
    )
    for of_heading in found.values():
        notes += [of_heading.title, *of_heading.notes]
    return table, sentence, list(dict.fromkeys(notes))


def _compare(arranged: Arrangement) -> tuple[dict[str, Series], list[str]]:
    """Return the column of gains over a reference, and notes on it.

    The reference does not depend on the results: it is the row of local training if
    there is one, else that of FedAvg, else the first row.
    """
    rows = arranged.rows
    methods = [row.split(" ")[0] for row in rows]
    known = [rows[methods.index(one)] for one in REFERENCES if methods.count(one) == 1]
    reference = (known or rows)[0]
    reading = Reading(arranged.runs[0].metric)
    gains: dict[tuple[str, str], str] = {}
    notes = []
    for column in arranged.columns:
        if reference not in arranged.column(column):
            notes.append(f"{column}: no gain, {reference} was not run on these data")
            continue
        try:
            compared = comparison.make_table(
                arranged, column, Reference(reference), reading
            )
        except UserError as error:
            notes.append(f"no interval: {error}")
            continue
        notes += [note for note in compared.notes if note != comparison.COLUMNS]
        for row, verdict in compared.numbers.set_index("row")["verdict"].items():
            gain = compared.texts.at[row, comparison.GAIN]
            gains[column, row] = f"{gain}, {verdict}" if verdict else gain
    if not gains:
        return {}, notes
    return {f"gain over {reference} ± 95 %": Series(gains)}, notes


def _draw_curves(drawn: Arrangement) -> list[tuple[str, str]]:
    """Return the caption and the address of each figure.

    One figure shows the primary metric over rounds, a second one over virtual time if
    that is recorded.
    """
    if any(run.results.is_packed for run in drawn.runs):
        return []
    run = drawn.runs[0]
    pictures = []
    for number, axis in enumerate(("rounds", "virtual")):
        found = curves.list_over_axis(drawn, run.metric, axis)
        if found.empty:
            continue
        ylabel = lines.name_scores(drawn.runs, run.metric)
        with house_style():
            figure = curves.draw(
                Sheet(WIDTH), found, run.measure, x=axis, ylabel=ylabel
            )
            svg = figures.encode_svg(figure, f"f{number}").decode()
        content = base64.b64encode(FOLDERS.sub("…/", svg).encode()).decode()
        caption = f"{ylabel}, over {curves.AXES[axis][0]}"
        address = f"data:image/svg+xml;base64,{content}"
        pictures.append((f"{caption}; {lines.count_repetitions(found)}", address))
    return pictures


def _explain_ends(drawn: Arrangement) -> list[str]:
    """Return a line on each run whose curve ends before its last round or before other
    curves.
    """
    ends = []
    for placed in drawn.placed:
        run = placed.run
        if run.results.is_packed:
            return ["A packed file has only the best and the last rounds: no curves."]
        if not run.summary.finished:
            ends.append(
                f"{placed.row} ends at round {run.summary.rounds} of "
                f"{run.config['rounds']}, {run.label} is {run.summary.state}"
            )
    return ends + curves.explain_limits(drawn)


def _list_events(runs: Sequence[Run]) -> list[str]:
    """Return lines on damage, failures and resumptions of runs."""
    events = []
    for run in runs:
        events += run.summary.notes
        if run.status.failure:
            events.append(
                f"{run.label}: {run.summary.state} after round {run.summary.rounds}: "
                f"{run.status.failure}"
            )
        for start in run.results.header.get("starts", [])[1:]:
            failure = f"; before it: {start['failure']}" if start["failure"] else ""
            events.append(
                f"{run.label}: continued after round {start['after']}, {start['time']}, "
                f"ranks: {start['ranks']}{failure}"
            )
    return events


def _list_waiting(folders: Sequence[Path]) -> list[str]:
    """Return a line on the cells of sweeps that have not begun."""
    sweeps: set[Path] = set()
    for folder in folders:
        sweeps |= {file.parent for file in folder.glob(f"**/{run_folder.CELLS}")}
    waiting = []
    for sweep in sorted(sweeps):
        for cell in run_folder.read_cells(sweep):
            if not run_folder.is_run(sweep / cell):
                waiting.append(cell)
    return [f"{len(waiting)} not begun: {', '.join(waiting)}"] if waiting else []


def _describe_settings(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return the values of keys in three groups by title: the keys in which the runs
    differ, the keys of software and machine, and all keys.
    """
    settings, origins = [], []
    for run in runs:
        header = run.results.header
        recorded = {key: header[key] for key in ORIGIN if key in header}
        settings.append(experiment_file.flatten(run.config))
        origins.append(experiment_file.flatten(recorded))
    texts = DataFrame(settings).drop(columns="name")
    texts = texts.astype(object).where(texts.notna(), MISSING).map(_write_value)
    texts = texts.sort_index(axis=1)
    frames = {
        "Keys in which the runs differ": texts.loc[:, texts.nunique() > 1],
        "Software and machine": DataFrame(origins).map(_write_value),
        "All keys": texts,
    }
    return {
        title: {key: _list_first(values) for key, values in frame.items()}
        for title, frame in frames.items()
    }


def _write_value(content: Any) -> str:
    """Return the value of a key as text, cut after VALUE_LETTERS letters."""
    text = str(content)
    if isinstance(content, list):
        text = " ".join(map(str, content)) or "none"
    return shorten(text, VALUE_LETTERS)


def _list_first(texts: Iterable[str]) -> str:
    """Return the first of the distinct texts and the number of further ones."""
    return wording.list_first(list(dict.fromkeys(texts)), VALUES)
