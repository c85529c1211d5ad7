"""``hpcfl.load`` and ``hpcfl.load_all``: runs read from folders and packed files.

Nothing here imports torch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UserError
from hpcfl.experiment.experiment_file import fingerprint
from hpcfl.files import wording
from hpcfl.storage import packed_runs, run_folder, run_status
from hpcfl.storage import results as recorded
from hpcfl.storage.metrics import find_primary
from hpcfl.storage.results import Results
from hpcfl.storage.run_status import RunStatus
from hpcfl.trained.run import Run

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
    folder = parse_path("folder", folder)
    runs = list_runs(folder, own)
    if is_sweep(folder, runs):
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
    runs = load_runs_in(list(dict.fromkeys(paths)))
    if not runs:
        raise UserError(f"{', '.join(map(str, asked))}: no run of hpcfl")
    import pandas

    rows = {str(run.folder): run.row() for run in runs}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("folder")


def parse_path(argument: str, value: Any) -> Path:
    """Return the path that an argument names. Raises UserError for any other value."""
    try:
        return Path(value)
    except TypeError:
        raise UserError(f"{argument} = {value!r} is no path; give a text") from None


def load_run(folder: Path, own: Collection[str] = ()) -> Run:
    """Load the run in a folder, finished or not. Raises UserError if none can be read.

    Args:
        own: the user's own plugins, ``module:object``, that may be imported when its
            models are asked for.
    """
    notes: list[str] = []
    description = _read_description(folder, notes)
    run = fingerprint(description) if description else None
    try:
        results = recorded.read(folder, run)
        notes += results.notes
    except UserError as error:
        notes.append(str(error))
        results = Results()
    config = description or results.header.get("config")
    if config is None:
        raise UserError(
            "; ".join([f"{folder}: no run of hpcfl can be read here", *notes])
        )
    run = run or results.header.get(recorded.RUN)
    status = run_status.look(folder, config["rounds"], results, run)
    notes += _describe_lost(folder, status, results)
    column, measure = find_primary(config["evaluation"], results)
    return Run(
        folder=folder,
        config=config,
        results=results,
        score=column,
        measure=measure,
        status=status,
        notes=notes,
        own=own,
    )


def list_runs(folder: Path, own: Collection[str] = ()) -> list[Run]:
    """Load the run in a folder, or the runs in a sweep's folder, sorted by name; see
    ``load_runs_in``.

    Raises UserError if there is no run.

    Args:
        own: as for ``load_run``.
    """
    if not folder.is_dir() and not packed_runs.is_packed(folder):
        raise UserError(f"{folder}: no such folder")
    if run_folder.is_tuning(folder):
        folder = folder / run_folder.FINAL
    return load_runs_in([folder], own) or [load_run(folder, own)]


def load_runs_below(
    folders: Sequence[Path], own: Collection[str] = ()
) -> tuple[list[Run], list[str]]:
    """Load the runs in some folders and below them, with notes on those left out.

    These are the ones that ``--fresh`` moved aside, see ``_sort_places``. Files of packed
    runs count as folders. own: as for ``load_run``. Raises UserError if there is no run, or
    a folder without any.
    """
    tried: list[Path] = []

    def all_below(folder: Path) -> list[Path]:
        """List a folder and those below it, without those that a tuning tried."""
        found: list[Path] = []
        for place in sorted(folder.glob("**/")):
            left_out = run_folder.leaves_out(folder, place)
            (tried if left_out else found).append(place)
        return found

    packed, folders = _load_packed(folders)
    if packed and not folders:
        return packed, []
    current, aside = _sort_places(folders, all_below)
    resolved = [place.resolve() for place in [*current, *aside]]
    for folder in folders:
        if not any(place.is_relative_to(folder.resolve()) for place in resolved):
            raise UserError(f"{folder}: no run of hpcfl here")
    if not current:
        raise UserError(
            f"{aside[0]}: --fresh moved it aside, and there is no other run; name it "
            "alone"
        )
    notes = []
    if aside:
        left_out = wording.list_first(list(map(str, aside)), 1)
        notes.append(
            f"left out, moved aside by --fresh: {left_out}; name the folder alone to "
            "include it"
        )
    if tried:
        notes.append(
            f"left out: the runs of a search, such as {tried[0]}; name their folder "
            "alone to include them"
        )
    return [*packed, *(load_run(place, own) for place in current)], notes


def load_runs_in(folders: Sequence[Path], own: Collection[str] = ()) -> list[Run]:
    """Load the runs in some folders, or one level below the folder of a sweep.

    Those that ``--fresh`` moved aside are left out, see ``_sort_places``. own: as for
    ``load_run``.
    """

    def cells(folder: Path) -> list[Path]:
        if run_folder.is_run(folder):
            return [folder]
        return sorted(folder.iterdir()) if folder.is_dir() else []

    packed, folders = _load_packed(folders)
    current, _ = _sort_places(folders, cells)
    return [*packed, *(load_run(place, own) for place in current)]


def _load_packed(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """Load the runs of packed files among some paths; return also the other paths.

    Raises UserError where a file of a run is missing or damaged: a packed run has no
    other copy.
    """
    runs: list[Run] = []
    folders = []
    for path in paths:
        if path.is_dir() or not packed_runs.is_packed(path):
            folders.append(path)
            continue
        with packed_runs.unpacked(path) as folder:
            for place in sorted(folder.iterdir()):
                try:
                    run = load_run(place)
                    notes = run.notes
                except UserError as error:
                    notes = [str(error)]
                if notes:
                    reason = notes[0].replace(str(folder), str(path))
                    raise UserError(f"{path}: cannot be read as packed runs ({reason})")
                runs.append(replace(run, folder=path / place.name))
    return runs, folders


def _sort_places(
    folders: Sequence[Path], below: Callable[[Path], list[Path]]
) -> tuple[list[Path], list[Path]]:
    """Return the runs' folders among those of ``below``, and those that lie aside, each
    once.

    A run that ``--fresh`` moved aside counts only where its folder alone is named.
    """
    current, aside = dict[Path, Path](), dict[Path, Path]()
    for folder in folders:
        named = [folder.name] if len(folders) > 1 else []
        for place in filter(run_folder.is_run, below(folder)):
            names = [*named, *place.relative_to(folder).parts]
            kind = aside if any(map(run_folder.is_aside, names)) else current
            kind.setdefault(place.resolve(), place)
    return list(current.values()), list(aside.values())


def is_sweep(folder: Path, runs: list[Run]) -> bool:
    """Tell whether ``runs`` of ``list_runs`` are cells of the folder."""
    return runs[0].folder != folder


def _read_description(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """Return the configuration in ``run.json``; None if it is missing, or damaged, which
    adds to ``notes``.
    """
    try:
        content = run_folder.read(folder)
        return content and content["config"]
    except run_folder.AnotherFormat:
        raise
    except UserError as error:
        notes.append(str(error))
        return None


def _describe_lost(folder: Path, status: RunStatus, results: Results) -> list[str]:
    """Return lines about data that damage has destroyed: metrics, or the final state."""
    if results.is_packed:
        return []
    played = results.rounds[results.played]
    rounds = max(status.done, int(played.max(initial=0)))
    missing = rounds - len(played)
    lines = []
    if missing > 0:
        lines.append(
            f"{folder}: metrics of {missing} of {rounds} rounds are lost, files were damaged"
        )
    if status.finished and status.checkpoints_lost:
        lines.append(
            f"{folder}: its checkpoints are damaged, the final state is lost; "
            "--fresh makes it again"
        )
    return lines
