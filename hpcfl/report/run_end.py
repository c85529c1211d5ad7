"""Results and figures of a run or sweep at its end."""

import shlex
from pathlib import Path

from hpcfl.files import output
from hpcfl.report import figures, summary, sweep_table, tables
from hpcfl.report.summary import Run


def show_results(folder: Path, played: bool) -> None:
    """Print the results in a folder; draw figures if anything was ``played`` now, or if
    there are none.
    """
    runs = summary.load_all(folder)
    if not output.is_quiet():
        _show(folder, runs)
    for path in (
        figures.draw(folder, runs) if played or not any(folder.glob("*.png")) else []
    ):
        output.say(f"figure: {path}")
    output.say(f"look further: hpcfl show {shlex.quote(str(folder))} --explain")


def _show(folder: Path, runs: list[Run]) -> None:
    """Print the table of a sweep whose runs differ in more than their method, else the
    table of a run.
    """
    if len(runs) > len({run.summary.method for run in runs}):
        sweep_table.show([folder])
    else:
        tables.show(folder, runs)
