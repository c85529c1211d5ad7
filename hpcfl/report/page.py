"""``hpcfl report``: all there is to say of runs on one page, which needs no other file
and no network.

Everything that comes from a run's folder is somebody else's text: it is escaped
wherever it stands, and the page's own policy lets a browser run no script but the
page's and load nothing.
"""

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcfl import __version__
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import protocols
from hpcfl.files import atomic, destination
from hpcfl.report import chapter, charts, summary, sweep_table, table_formats
from hpcfl.report.arrangement import Arrangement, arrange
from hpcfl.report.grid import Grid
from hpcfl.report.reading import VALIDATION, holds_out
from hpcfl.report.summary import Run
from hpcfl.report.sweep_table import Reading
from hpcfl.report.text import plain
from hpcfl.storage import run_folder, sweep_folder

HERE = Path(__file__).parent
# what a summary over clients is called
KINDS = {
    "weighted": "of all samples",
    "mean": "mean over clients",
    "std": "std over clients",
    "worst_tenth": "worst tenth of clients",
}
VALUES = 12  # of a key that are named
# by what it is called: the metric and where it is read
READ = {
    "best round": Reading(),
    "validation": Reading(VALIDATION),
    "last tenth": Reading(at="tail"),
}
RAN = (
    "versions",
    "commit",
    "processor",
    "gpus",
    "ranks",
    "command",
)  # what is said of where runs were made
LONGEST = 300  # letters of a value


def write(folders: Sequence[Path], out: Path) -> None:
    """Write the page of all runs in folders and below them into a file, in place of
    what was there.

    Raises UserError if there is no run, or the file cannot be written.
    """
    destination.check_file(out)
    if not out.parent.is_dir():
        raise UserError(
            f"{out}: is no file in a folder that is there; choose another --out"
        )
    runs, _ = summary.runs_below(folders)
    page = render(runs, ", ".join(map(str, folders)), _waiting(folders))
    try:
        atomic.write(out, page.encode())
    except RunFailure as error:
        raise UserError(f"{error}; choose another --out") from None


def render(runs: list[Run], title: str, waiting: Sequence[str]) -> str:
    """The page of runs as HTML; ``waiting``: the names of others. The same runs make
    the same page.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(content: Any) -> Any:
        return (
            plain(content)
            if isinstance(content, str) and not isinstance(content, Markup)
            else content
        )

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.globals |= {
        "title_of": table_formats.title,
        "SIZE": charts.SIZE,
    }
    script, style = (
        (HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")
    )
    arranged = arrange(
        [run for run in runs if run.summary.finished] or runs, unfinished=True
    )
    chapters = [chapter.make(arranged, column) for column in arranged.columns]
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        script=Markup(script),
        style=Markup(style),
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kinds=KINDS,
        best_by=" or ".join(sorted({run.summary.best_by for run in runs})),
        runs=runs,
        states=Counter(run.summary.state for run in runs),
        measure=runs[0].measure,
        waiting=waiting,
        tables=_tables(runs, arranged),
        chapters=chapters,
        differing=_differing(runs),
        ran=_ran(runs),
        configuration=_values([protocols.flat(run.config) for run in runs]),
    )


def _waiting(folders: Sequence[Path]) -> list[str]:
    """The cells of all sweeps in folders and below them that nobody has begun."""
    sweeps = sorted(
        {
            file.parent
            for folder in folders
            for file in folder.glob(f"**/{sweep_folder.CELLS}")
        }
    )
    return [
        cell
        for sweep in sweeps
        for cell in sweep_folder.cells(sweep)
        if not run_folder.is_run(sweep / cell)
    ]


def _tables(runs: list[Run], arranged: Arrangement) -> dict[str, Grid]:
    """The numbers that count, with what differs by more than the noise, as each of
    ``READ`` reads them; of held-out samples only where a run has some.

    Rows are in the order of the first column.
    """
    finished = [run for run in runs if run.summary.finished]
    if not finished:
        return {}
    order = list(chapter.best_first(arranged.column(arranged.columns[0])))
    test = runs[0].measure.kind != "std"
    held_out = any(map(holds_out, finished))
    return {
        name: sweep_table.make(runs, reading=replace(reading, test=test)).ordered(order)
        for name, reading in READ.items()
        if held_out or reading.metric != VALIDATION
    }


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """The keys that every run's configuration has and in which runs differ, with the
    values.
    """
    settings = [protocols.flat(run.config) for run in runs]
    keys = [
        key
        for key in settings[0]
        if all(key in setting for setting in settings)
        and any(setting[key] != settings[0][key] for setting in settings)
    ]
    return _values([{key: setting[key] for key in keys} for setting in settings])


def _ran(runs: Sequence[Run]) -> dict[str, str]:
    """Where and by what the runs were made, with the values that occur."""
    return _values(
        [
            protocols.flat(
                {
                    key: run.results.header[key]
                    for key in RAN
                    if key in run.results.header
                }
            )
            for run in runs
        ]
    )


def _values(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The values of each key but the run's name as text, each once."""
    texts = {
        key: [
            str(content)
            for content in dict.fromkeys(
                _words(setting[key]) for setting in settings if key in setting
            )
        ]
        for key in sorted({key for setting in settings for key in setting} - {"name"})
    }
    return {
        key: ", ".join(of[:VALUES])
        + (f" and {len(of) - VALUES} more" if len(of) > VALUES else "")
        for key, of in texts.items()
    }


def _words(content: Any) -> str:
    """A value in words, a command line as it is typed."""
    text = (
        " ".join(map(str, content)) or "none"
        if isinstance(content, list)
        else str(content)
    )
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
