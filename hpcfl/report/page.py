"""``hpcfl report``: all there is to say of runs on one page, which needs no other file
and no network.

Everything that comes from a run's folder is somebody else's text: it is escaped
wherever it stands, and the page's own policy lets a browser run no script but the
page's and load nothing. No text names a folder of the machine: of a path that begins
at its root the last name is left.
"""

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl import __version__
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import protocols
from hpcfl.files import atomic, destination
from hpcfl.report import (
    chapter,
    figures,
    style,
    summary,
    sweep_table,
)
from hpcfl.report.arrangement import Arrangement, arrange
from hpcfl.report.chapter import Chapter, Paper
from hpcfl.report.grid import Grid
from hpcfl.report.reading import VALIDATION, holds_out
from hpcfl.report.summary import Run
from hpcfl.report.sweep_table import Reading
from hpcfl.report.text import plain
from hpcfl.storage import run_folder, sweep_folder

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent
# What a summary over clients is called on the page.
KINDS = {
    "weighted": "of all samples",
    "mean": "mean over clients",
    "std": "std over clients",
    "worst_tenth": "worst tenth of clients",
}
VALUES = 12  # of a key that are listed
# The tables of the page: by its title the metric and where it is read.
READ = {
    "best round": Reading(),
    "validation": Reading(VALIDATION),
    "last tenth": Reading(at="tail"),
}
# The keys of a results file that say where and by what a run was made.
RAN = (
    "versions",
    "commit",
    "processor",
    "arithmetic",
    "gpus",
    "ranks",
    "command",
)
LONGEST = 300  # letters of a value
# the folders of a path that begins at its root, or at somebody's home
FOLDER = r"/[^\s/'\":;,=<>]+"
FOLDERS = re.compile(rf"(?<![\w.…/])(?:~|{FOLDER})(?:{FOLDER})*/(?=[^\s/])")


def write(folders: Sequence[Path], out: Path) -> None:
    """Write the page of all runs in folders and below them into a file, in place of
    what was there.

    Raises UserError if there is no run, or the file cannot be written.
    """
    figures.require_matplotlib()
    destination.check_file(out)
    if not out.parent.is_dir():
        raise UserError(
            f"{out}: is no file in a folder that is there; choose another --out"
        )
    runs, _ = summary.runs_below(folders)
    page = render(runs, _waiting(folders))
    try:
        atomic.write(out, page.encode())
    except RunFailure as error:
        raise UserError(f"{error}; choose another --out") from None


def render(runs: list[Run], waiting: Sequence[str]) -> str:
    """The page of runs as HTML. The same runs make the same page.

    Args:
        runs: Those that are on it; the finished ones, if there are any, are drawn.
        waiting: The names of runs that nobody has begun.
    """
    from markupsafe import Markup

    script = (HERE / "page.js").read_text(encoding="utf-8")
    style_sheet = (HERE / "page.css").read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode()).digest()
    finished = [run for run in runs if run.summary.finished]
    arranged = arrange(finished or runs, unfinished=True)
    return _template().render(
        title=_experiments(runs),
        version=__version__,
        script=Markup(script),
        style=Markup(style_sheet),
        script_hash=b64encode(digest).decode(),
        kinds=KINDS,
        best_by=" or ".join(sorted({run.summary.best_by for run in runs})),
        runs=runs,
        states=Counter(run.summary.state for run in runs),
        measure=runs[0].measure,
        waiting=waiting,
        tables=_tables(runs, arranged),
        chapters=_chapters(arranged),
        differing=_differing(runs),
        ran=_ran(runs),
        configuration=_values([protocols.flat(run.config) for run in runs]),
    )


def _template() -> "Template":
    """The page's template, which escapes all texts but those that are marked as HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(content: Any) -> Any:
        if isinstance(content, str) and not isinstance(content, Markup):
            return shown(content)
        return content

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.globals |= {"svg": Markup}
    return environment.get_template("page.html")


def shown(text: str) -> str:
    """A text as the page shows it: on one line, and without the folders of a path."""
    return FOLDERS.sub("…/", plain(text))


def _experiments(runs: Sequence[Run]) -> str:
    """The names of the experiments; that of a sweep's cell begins with the sweep's."""
    names = [str(run.config["name"]).removesuffix(f"-{run.label}") for run in runs]
    return _few(names)


def _chapters(arranged: Arrangement) -> list[Chapter]:
    """One for each column. A row has the same look in all of them."""
    methods = {}
    for (row, _), runs in arranged.repetitions.items():
        methods[row] = runs[0].summary.method
    chapters = []
    with figures.house_style():
        looks = style.looks(methods)
        for number, column in enumerate(arranged.columns):
            paper = Paper(looks, f"f{number}", shown)
            chapters.append(chapter.make(arranged, column, paper))
    return chapters


def _waiting(folders: Sequence[Path]) -> list[str]:
    """The cells of all sweeps in folders and below them that nobody has begun."""
    sweeps: set[Path] = set()
    for folder in folders:
        sweeps |= {file.parent for file in folder.glob(f"**/{run_folder.CELLS}")}
    waiting = []
    for sweep in sorted(sweeps):
        for cell in sweep_folder.cells(sweep):
            if not run_folder.is_run(sweep / cell):
                waiting.append(cell)
    return waiting


def _tables(runs: list[Run], arranged: Arrangement) -> dict[str, Grid]:
    """Return the numbers that count as each of ``READ`` reads them, those of held-out
    samples only where a run has some.

    Rows are in the order of the first column.
    """
    finished = [run for run in runs if run.summary.finished]
    if not finished:
        return {}
    first_column = arranged.column(arranged.columns[0])
    order = list(chapter.best_first(first_column))
    held_out = any(holds_out(run) for run in finished)
    tables = {}
    for name, reading in READ.items():
        if reading.metric == VALIDATION and not held_out:
            continue
        grid = sweep_table.make(runs, reading=reading)
        tables[name] = grid.ordered(order)
    return tables


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """The keys that every run's configuration has and in which runs differ, with the
    values.
    """
    first, *others = [protocols.flat(run.config) for run in runs]
    keys = []
    for key, content in first.items():
        common = all(key in other for other in others)
        if common and any(other[key] != content for other in others):
            keys.append(key)
    settings = []
    for configuration in (first, *others):
        settings.append({key: configuration[key] for key in keys})
    return _values(settings)


def _ran(runs: Sequence[Run]) -> dict[str, str]:
    """Where and by what the runs were made, with the values that occur."""
    made = []
    for run in runs:
        header = run.results.header
        recorded = {key: header[key] for key in RAN if key in header}
        made.append(protocols.flat(recorded))
    return _values(made)


def _values(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The values of each key but the run's name as text, each once."""
    texts: dict[str, list[str]] = {}
    for setting in settings:
        for key, content in setting.items():
            texts.setdefault(key, []).append(_words(content))
    return {key: _few(texts[key]) for key in sorted(texts) if key != "name"}


def _few(texts: Sequence[str]) -> str:
    """The first of some texts, each once, and how many are left."""
    different = list(dict.fromkeys(texts))
    left = len(different) - VALUES
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(different[:VALUES]) + more


def _words(content: Any) -> str:
    """A value in words, a command line as it is typed."""
    text = str(content)
    if isinstance(content, list):
        text = " ".join(map(str, content)) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
