"""What a run or sweep prints at its end: the results, the files with their figures, how
to look further.
"""

import shlex
from pathlib import Path

from hpcfl.report import figures, summary, sweep_table, tables


def tell(folder: Path, played: bool) -> None:
    """Print what is in a run's or a sweep's folder, and draw figures into it.

    They are drawn if anything was ``played`` now, or if there are none, as after a disk
    was full.
    """
    runs = summary.load_all(folder)
    # where runs differ in more than their method, there is something to average or to
    # cross
    if len(runs) > len({run.summary.method for run in runs}):
        sweep_table.show([folder])
    else:
        tables.show(folder, runs)
    for path in (
        figures.draw(folder, runs) if played or not any(folder.glob("*.png")) else []
    ):
        print(f"figure: {path}")
    print(f"look further: hpcfl show {shlex.quote(str(folder))} --explain", flush=True)
