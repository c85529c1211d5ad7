"""Results of a run at its end, and results and figures of a sweep."""

import shlex
from pathlib import Path

from hpcfl.files import output
from hpcfl.report import tables
from hpcfl.trained import loading


def show_results(folder: Path, played: bool) -> None:
    """Print the results in a folder, and draw the figures of a sweep.

    A sweep's figures are drawn if a cell was ``played`` now, or if there are none.
    ``hpcfl plot`` draws those of a run: its libraries take as long to start as a short
    run trains.
    """
    runs = loading.list_runs(folder)
    if len(runs) > len({run.summary.method for run in runs}):
        from hpcfl.report import sweep_table

        sweep_table.show([folder])
    else:
        tables.show(folder, runs)
    place = shlex.quote(str(folder))
    if not loading.is_sweep(folder, runs):
        output.say(f"look further: hpcfl show {place} --explain, hpcfl plot {place}")
        return
    if played or not any(folder.glob("*.png")):
        from hpcfl.report import figures

        for path in figures.draw(folder, runs):
            output.say(f"figure: {path}")
    output.say(f"look further: hpcfl show {place} --explain")
