"""Print the results of a finished run or sweep, and draw the figures of a sweep."""

import shlex
from pathlib import Path

from hpcfl.files import output
from hpcfl.report import tables
from hpcfl.trained import loading


def show_results(folder: Path, has_played: bool) -> None:
    """Print the results in a folder, and draw the figures of a sweep.

    Figures of a single run are left to ``hpcfl plot``, because loading matplotlib takes
    as long as a short run.

    Args:
        folder: Folder of the run or sweep.
        has_played: Whether a cell of the sweep has run now. If so, figures are drawn anew;
            otherwise only if there are none.
    """
    runs = loading.list_runs(folder)
    if len(runs) > len({run.summary.method for run in runs}):
        from hpcfl.report import sweep_table

        sweep_table.show([folder])
    else:
        tables.show(folder, runs)
    place = shlex.quote(str(folder))
    if not loading.is_sweep(folder, runs):
        output.say(f"more: hpcfl show {place} --explain, hpcfl plot {place}")
        return
    if has_played or not any(folder.glob("*.png")):
        from hpcfl.report import figures

        for path in figures.draw(folder, runs):
            output.say(f"figure: {path}")
    output.say(f"more: hpcfl show {place} --explain")
