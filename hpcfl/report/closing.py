"""What a run or sweep prints at its end: the results, the files with their figures, how to look further."""

import shlex
from pathlib import Path

from hpcfl.report import figures, summary, sweep_table, tables
from hpcfl.report.text import plain


def tell(folder: Path, played: bool) -> None:
    """Print what is in a run's or a sweep's folder; if anything was ``played`` now, draw its figures into it.

    The results are safe already, so a report that fails is a note and not a failure of the run.
    """
    try:
        tables.show(folder)
        runs = summary.load_all(folder)
        # only where runs differ in more than their method: then there is something to average or to cross
        if len(runs) > len({run.summary.method for run in runs}):
            sweep_table.show(folder)
        for path in figures.draw(folder) if played else []:
            print(f"figure: {path}")
    except Exception as error:
        print(f"note: the results are complete, but their report failed ({type(error).__name__}: "
              f"{plain(error)})")
    print(f"look further: hpcfl show {shlex.quote(str(folder))}", flush=True)
