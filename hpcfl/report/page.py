"""``hpcfl report``: a page about runs that needs no other file, no script and no network.

Texts from a run's folder may come from a stranger, so they are escaped, and the page's
policy forbids scripts. No text names a folder of the machine: only the last name of an
absolute path is shown.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl import __version__
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import protocols
from hpcfl.files import atomic, destination
from hpcfl.report import chapter, figures, style, sweep_table
from hpcfl.report.arrangement import Arrangement, arrange
from hpcfl.report.chapter import Chapter
from hpcfl.report.grid import Grid
from hpcfl.report.metric_values import VALIDATION, holds_out
from hpcfl.report.sweep_table import Reading
from hpcfl.report.text import plain
from hpcfl.storage import run_folder, sweep_folder
from hpcfl.trained import loading
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent
VALUES = 12  # of a key that are listed
# The metrics of the page's tables, and the rounds in which they are read.
READ = (Reading(), Reading(VALIDATION), Reading(at="tail"))
# The keys of a results file that tell the software and the machine of a run.
ORIGIN = (
    "versions",
    "commit",
    "processor",
    "arithmetic",
    "gpus",
    "ranks",
    "command",
)
LONGEST = 300  # letters of a value
# the folders of a path that begins at its root, or at a user's home
FOLDER = r"/[^\s/'\":;,=<>]+"
FOLDERS = re.compile(rf"(?<![\w.…/])(?:~|{FOLDER})(?:{FOLDER})*/(?=[^\s/])")


def write(folders: Sequence[Path], out: Path) -> None:
    """Write the page of all runs in folders and below them into a file.

    Raises UserError if there is no run, or the file cannot be written.
    """
    figures.require_matplotlib()
    destination.check_file(out)
    if not out.parent.is_dir():
        raise UserError(
            f"--out {out}: there is no folder {out.parent}; choose another --out"
        )
    runs, _ = loading.runs_below(folders)
    page = render(runs, _list_waiting(folders))
    try:
        atomic.write(out, page.encode())
    except RunFailure as error:
        raise UserError(f"{error}; choose another --out") from None


def render(runs: list[Run], waiting: Sequence[str]) -> str:
    """Return the page of runs as HTML. The same runs make the same page.

    Args:
        runs: Those that are on it; the finished ones, if there are any, are drawn.
        waiting: The names of runs that have not begun.
    """
    finished = [run for run in runs if run.summary.finished]
    arranged = arrange(finished or runs, unfinished=True)
    names = [str(run.config["name"]).removesuffix(f"-{run.label}") for run in runs]
    configurations = [protocols.flat(run.config) for run in runs]
    origins = []
    for run in runs:
        header = run.results.header
        recorded = {key: header[key] for key in ORIGIN if key in header}
        origins.append(protocols.flat(recorded))
    return _read_template().render(
        title=_list_first(names),
        version=__version__,
        style_sheet=(HERE / "page.css").read_text(encoding="utf-8"),
        runs=runs,
        states=Counter(run.summary.state for run in runs),
        waiting=waiting,
        tables=_tabulate(runs, arranged),
        chapters=_make_chapters(arranged),
        differing=_list_values(_keep_differing(configurations)),
        origins=_list_values(origins),
        configuration=_list_values(configurations),
    )


def _read_template() -> "Template":
    """Return the page's template, which escapes all texts that are not marked as safe."""
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
    # A figure's texts are escaped already.
    environment.filters["figure"] = lambda svg: Markup(FOLDERS.sub("…/", svg))
    return environment.get_template("page.html")


def shown(text: str) -> str:
    """Return a text on one line, and without the folders of a path."""
    return FOLDERS.sub("…/", plain(text))


def _make_chapters(arranged: Arrangement) -> list[Chapter]:
    """Return a chapter for each column. A row has the same look in all of them."""
    methods = {}
    for (row, _), runs in arranged.repetitions.items():
        methods[row] = runs[0].summary.method
    chapters = []
    with figures.house_style():
        looks = style.looks(methods)
        for number, column in enumerate(arranged.columns):
            chapters.append(chapter.make(arranged, column, looks, f"f{number}"))
    return chapters


def _list_waiting(folders: Sequence[Path]) -> list[str]:
    """List the cells of all sweeps in folders and below them that have not begun."""
    sweeps: set[Path] = set()
    for folder in folders:
        sweeps |= {file.parent for file in folder.glob(f"**/{run_folder.CELLS}")}
    waiting = []
    for sweep in sorted(sweeps):
        for cell in sweep_folder.cells(sweep):
            if not run_folder.is_run(sweep / cell):
                waiting.append(cell)
    return waiting


def _tabulate(runs: list[Run], arranged: Arrangement) -> list[Grid]:
    """Return the tables of results with rows in the order of the first column; a table
    of held-out samples only where a run has some.
    """
    if not any(run.summary.finished for run in runs):
        return []
    order = list(chapter.best_first(arranged.column(arranged.columns[0])))
    held_out = any(holds_out(run) for run in runs)
    tables = []
    for reading in READ:
        if held_out or reading.metric != VALIDATION:
            grid = sweep_table.make(runs, reading=reading)
            tables.append(grid.ordered(order))
    return tables


def _keep_differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Keep the keys that all settings have and in which they differ."""
    common = set.intersection(*map(set, settings))
    first = settings[0]
    keys = [
        key for key in common if any(other[key] != first[key] for other in settings)
    ]
    return [{key: setting[key] for key in keys} for setting in settings]


def _list_values(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the values of each key but the run's name as text, each once."""
    texts: dict[str, list[str]] = {}
    for setting in settings:
        for key, content in setting.items():
            text = str(content)
            if isinstance(content, list):
                text = " ".join(map(str, content)) or "none"
            cut = "…" if len(text) > LONGEST else ""
            texts.setdefault(key, []).append(text[:LONGEST] + cut)
    return {key: _list_first(texts[key]) for key in sorted(texts) if key != "name"}


def _list_first(texts: Sequence[str]) -> str:
    """Return the first of some texts, each once, and the number of the others."""
    different = list(dict.fromkeys(texts))
    left = len(different) - VALUES
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(different[:VALUES]) + more
