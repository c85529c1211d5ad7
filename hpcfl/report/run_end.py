"""Results and figures of a run or sweep at its end."""

import shlex
from pathlib import Path

from hpcfl.files import output
from hpcfl.report import figures, sweep_table, tables
from hpcfl.trained import loading


def show_results(folder: Path, played: bool) -> None:
    """Print the results in a folder; draw figures if anything was ``played`` now, or if
    there are none.
    """
    runs = loading.list_runs(folder)
    if len(runs) > len({run.summary.method for run in runs}):
        sweep_table.show([folder])
    else:
        tables.show(folder, runs)
    if played or not any(folder.glob("*.png")):
        for path in figures.draw(folder, runs):
            output.say(f"figure: {path}")
    output.say(f"look further: hpcfl show {shlex.quote(str(folder))} --explain")
