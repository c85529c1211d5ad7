"""``hpcfl.load`` and ``hpcfl.load_all``: runs read from folders and packed files.

This module does not import torch.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
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

    Args:
        folder: folder of a run or a sweep, or file of packed runs.
        own: names, ``module:object``, of the user's own methods, models and data sets
            that may be imported when models are loaded. Objects that only a folder
            names are never imported.

    Raises:
        UserError: The folder contains no run.
    """
    folder = parse_path("folder", folder)
    runs = list_runs(folder, own)
    if is_sweep(folder, runs):
        return {run.label: run for run in runs}
    return runs[0]


def load_all(folders: str | Path | Iterable[str | Path]) -> "pandas.DataFrame":
    """Return all runs in folders as a data frame, with one row per run.

    Columns hold the configuration by dotted key and the results, see ``Run.row``.

    Args:
        folders: one or several folders, or patterns such as ``"runs/*"``. For a sweep's
            folder all its runs are read, for a tuning's folder the final runs; other
            folders are ignored. A run that ``--fresh`` moved aside is read only if its
            folder is the only one.

    Raises:
        UserError: No folder contains a run.
    """
    asked = [folders] if isinstance(folders, str | Path) else list(folders)
    paths: list[Path] = []
    for pattern in map(str, asked):
        # The name of a folder may contain brackets.
        is_path = os.path.exists(pattern)
        paths += map(Path, [pattern] if is_path else sorted(glob(pattern)))
    runs = load_runs_in(list(dict.fromkeys(paths)))
    if not runs:
        raise UserError(f"{', '.join(map(str, asked))}: contains no run of hpcfl")
    import pandas

    rows = {str(run.folder): run.row() for run in runs}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("folder")


def parse_path(argument: str, value: Any) -> Path:
    """Return the path in an argument.

    Args:
        argument: name of the argument, for the error.
        value: its value.

    Raises:
        UserError: The value is not a path.
    """
    try:
        return Path(value)
    except TypeError:
        raise UserError(
            f"{argument} = {value!r} is not a path; pass a str or Path"
        ) from None


def load_run(folder: Path, own: Collection[str] = ()) -> Run:
    """Load the run in a folder, finished or not.

    Args:
        folder: folder of the run.
        own: user's own plugins, ``module:object``, that may be imported when models are
            loaded.

    Raises:
        UserError: The folder contains no readable run.
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
            "; ".join([f"{folder}: contains no readable run of hpcfl", *notes])
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
    """Load the run in a folder, or the runs in a sweep's folder, sorted by name.

    Args:
        folder: folder of a run, sweep or tuning, or file of packed runs.
        own: user's own plugins, as in ``load_run``.

    Raises:
        UserError: The folder contains no run.
    """
    if not folder.is_dir() and not packed_runs.is_packed(folder):
        raise UserError(f"{folder}: no such folder")
    return load_runs_in([folder], own) or [load_run(folder, own)]


def load_runs_below(
    folders: Sequence[Path], own: Collection[str] = ()
) -> tuple[list[Run], list[str]]:
    """Load the runs in some folders and below them.

    Runs that ``--fresh`` moved aside and runs of a search are left out.

    Args:
        folders: folders, and files of packed runs.
        own: user's own plugins, as in ``load_run``.

    Returns:
        The runs, and notes on those left out.

    Raises:
        UserError: A folder contains no run.
    """
    packed, folders = _load_packed(folders)
    if packed and not folders:
        return packed, []
    below: dict[Path, list[Path]] = {}
    tried: list[Path] = []  # folders of runs that a tuning tried
    for folder in folders:
        below[folder] = []
        for place in _list_places(folder):
            is_tried = run_folder.is_left_out(folder, place)
            (tried if is_tried else below[folder]).append(place)
    current, aside = _sort_places(below)
    places = set[Path]()  # folders of runs, and all folders above them
    for place in [*current, *aside]:
        resolved = place.resolve()
        places.update([resolved, *resolved.parents])
    for folder in folders:
        if folder.resolve() not in places:
            raise UserError(f"{folder}: contains no run of hpcfl")
    if not current:
        raise UserError(
            f"{aside[0]}: was moved aside by --fresh, and no other run exists; to read it, "
            "name only this folder"
        )
    notes = []
    if aside:
        left_out = wording.list_first(list(map(str, aside)), 1)
        notes.append(
            f"left out, moved aside by --fresh: {left_out}; to read it, name only this "
            "folder"
        )
    if tried:
        notes.append(
            f"left out: runs of a search, such as {tried[0]}; to read them, name only "
            "their folder"
        )
    return [*packed, *(load_run(place, own) for place in current)], notes


def _list_places(folder: Path) -> list[Path]:
    """Return a folder and all folders below it, ascending.

    A link to a run, a sweep or a tuning is followed; other folders behind a link are
    left out.
    """
    places = [folder]
    for above, names, _ in os.walk(folder):
        for place in map(Path(above).joinpath, names):
            places.append(place)
            if place.is_symlink():
                places += place.glob("*/")
                places += place.glob(f"{run_folder.FINAL}/*/")
    return sorted(places)


def load_runs_in(folders: Sequence[Path], own: Collection[str] = ()) -> list[Run]:
    """Load the runs in some folders, the cells of sweeps and the final runs of tunings.

    Runs that ``--fresh`` moved aside are left out.

    Args:
        folders: folders, and files of packed runs.
        own: user's own plugins, as in ``load_run``.
    """
    packed, folders = _load_packed(folders)
    below: dict[Path, list[Path]] = {}
    for folder in folders:
        below[folder] = [folder]
        is_tuning = run_folder.is_tuning(folder)
        sweep = folder / run_folder.FINAL if is_tuning else folder
        if sweep.is_dir() and not run_folder.is_run(sweep):
            below[folder] = sorted(sweep.iterdir())
    current, _ = _sort_places(below)
    return [*packed, *(load_run(place, own) for place in current)]


def _load_packed(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """Load the runs in packed files; return them and the other paths.

    Raises UserError if a file of a run is missing or damaged, because a packed run has
    no other copy.
    """
    runs: list[Run] = []
    folders = []
    for path in paths:
        if path.is_dir() or not packed_runs.is_packed(path):
            folders.append(path)
            continue
        with packed_runs.unpack(path) as folder:
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
    below: Mapping[Path, list[Path]],
) -> tuple[list[Path], list[Path]]:
    """Return the folders of current runs, and of runs that ``--fresh`` moved aside,
    each once.

    A run that was moved aside counts as current if its folder is the only one.

    Args:
        below: possible folders of runs, by the folder that a user named.
    """
    current, aside = dict[Path, Path](), dict[Path, Path]()
    for folder, places in below.items():
        named = [folder.name] if len(below) > 1 else []
        for place in filter(run_folder.is_run, places):
            names = [*named, *place.relative_to(folder).parts]
            kind = aside if any(map(run_folder.is_aside, names)) else current
            kind.setdefault(place.resolve(), place)
    return list(current.values()), list(aside.values())


def is_sweep(folder: Path, runs: list[Run]) -> bool:
    """Return whether ``runs`` of ``list_runs`` are cells of a sweep in the folder."""
    return runs[0].folder != folder


def _read_description(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """Return the configuration in ``run.json``; None if it is missing or damaged.

    A damaged file adds a line to ``notes``.
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
    """Return lines about data lost by damage: metrics, or the final state."""
    if results.is_packed:
        return []
    played = results.rounds[results.played]
    rounds = max(status.done, int(played.max(initial=0)))
    missing = rounds - len(played)
    lines = []
    if missing > 0:
        lines.append(
            f"{folder}: metrics of {missing} of {rounds} rounds are lost, because files are damaged"
        )
    if status.finished and status.checkpoints_lost:
        lines.append(
            f"{folder}: its checkpoints are damaged and the final state is lost; "
            "--fresh computes it again"
        )
    return lines
