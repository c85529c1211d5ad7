"""``hpcfl.load`` and ``hpcfl.load_all``, which read results without torch."""

from collections.abc import Collection, Iterable
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UserError
from hpcfl.report import frames, summary
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    import pandas


def load(folder: str | Path, own: Collection[str] = ()) -> Run | dict[str, Run]:
    """Read the run in a folder, finished or not; for a sweep's folder, return its runs
    by name.

    Raises UserError if there is none.

    Args:
        own: the names, ``module:object``, of your own methods, models and data sets
            that may be imported when models are asked for; nothing is imported only
            because a folder names it.
    """
    folder = as_path("folder", folder)
    runs = summary.load_all(folder, own)
    if summary.is_sweep(folder, runs):
        return {run.label: run for run in runs}
    return runs[0]


def load_all(folders: str | Path | Iterable[str | Path]) -> "pandas.DataFrame":
    """Return all runs in folders as a data frame, one row a run: its configuration by
    dotted key, and its results.

    Raises UserError if there is no run.

    Args:
        folders: one or several, also patterns such as ``"runs/*"``; of a sweep's folder all
            runs in it, of a folder without a run nothing. A run that ``--fresh`` moved
            aside counts only where its folder alone is named. See ``Run.row`` for the
            columns.
    """
    asked = [folders] if isinstance(folders, str | Path) else list(folders)
    paths: list[Path] = []
    for pattern in map(str, asked):
        # A pattern that matches nothing may be a folder with brackets in its name.
        matching = sorted(glob(pattern)) or [pattern]
        paths += map(Path, matching)
    runs = summary.runs_in(list(dict.fromkeys(paths)))
    if not runs:
        raise UserError(f"{', '.join(map(str, asked))}: no run of hpcfl")
    return frames.runs({str(run.folder): run.row() for run in runs})


def as_path(argument: str, value: Any) -> Path:
    """Return the path that an argument names. Raises UserError for any other value."""
    try:
        return Path(value)
    except TypeError:
        raise UserError(f"{argument} = {value!r} is no path; give a text") from None
