"""Packing of many runs into one file, which can be published with a table.

``hpcfl pack`` writes the file; ``table``, ``report``, ``plot`` and ``hpcfl.load_all``
read it like a folder; ``hpcfl verify`` repeats its runs. It is an archive, ``.tar.xz``,
with a folder for each run that holds ``run.json`` and ``metrics.h5``. ``metrics.h5``
contains only the rounds at which results are reported (best, last, tail), and the
first and last round in which each client diverged: all metrics of the round, and
clients' metrics for the primary score in the primary column and after the epochs of
``evaluation.tune_epochs``. Models and partitions are not packed.
"""

import io
import tarfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import measures
from hpcfl.experiment.experiment_file import PATHS
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.scores.base import Ratio
from hpcfl.scores.metric_names import DIVERGED, has_scores, name_held_out, name_tuned
from hpcfl.storage import metrics, results, run_folder
from hpcfl.storage.forms import FileName
from hpcfl.storage.packed_runs import SUFFIX
from hpcfl.storage.results import DIGEST, MERGED, Results
from hpcfl.trained.run import Run


def write(runs: Sequence[Run], out: Path) -> list[str]:
    """Write finished runs to a file, replacing an existing file.

    Args:
        runs: the runs; unfinished ones are left out.
        out: the file.

    Returns:
        Lines for the user.

    Raises:
        UserError: No run is finished, two runs have one name, or ``out`` cannot name a
            file.
        RunFailure: The file cannot be written.
    """
    atomic.check_file(out)
    if not out.name.endswith(SUFFIX):
        raise UserError(f"--out {out}: its name must end with {SUFFIX}")
    finished = [run for run in runs if run.summary.finished]
    if not finished:
        raise UserError("no run is finished; finish a run before packing")
    names = _name_runs(finished)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for name, run in sorted(
            zip(names, finished, strict=True), key=lambda one: one[0]
        ):
            config = _cut_paths(run.config)
            _add(archive, f"{name}/{run_folder.RUN}", run_folder.encode_run(config))
            _add(archive, f"{name}/{MERGED}", results.encode(_keep_read(run, config)))
    atomic.write(out, content.getvalue())
    lines = [note for run in finished for note in run.notes]
    if len(finished) < len(runs):
        lines.append(f"left out, not finished: {len(runs) - len(finished)} runs")
    size = len(content.getvalue()) / 1e3
    return [*lines, f"{len(finished)} runs in {out}, {size:,.0f} kB"]


def _keep_read(run: Run, config: dict[str, Any]) -> Results:
    """Return the results of a run that tables read, with ``config`` in the header."""
    recorded = run.results
    best = run.summary.best
    best_round = best["round"] if best else None
    kept = set(np.flatnonzero(~recorded.played)[-1:].tolist())
    for name in recorded.names:
        if name.of_clients or not has_scores(name.column):
            continue
        numbers = recorded.get_series(name).astype(float)
        for at in ("best", "last", "tail"):
            kept |= set(
                metrics.find_positions(recorded.rounds, numbers, best_round, at)
            )
    rows = sorted(kept | _find_divergences(recorded))
    epochs = run.config["evaluation"].get("tune_epochs", [])
    columns = (run.score, name_held_out(run.score), *map(name_tuned, epochs))
    of_score = _list_parts(run.measure.score)
    read = recorded.select_rounds(rows)
    names = []
    for name in read.names:
        counted = name.column in columns and name.number in of_score
        if not name.of_clients or not name.column or counted:
            names.append(str(name))
    values = read.values.select_names(names)
    command = [Path(word).name for word in recorded.header.get("command", [])]
    header = {
        **recorded.header,
        "config": config,
        "command": command,
        DIGEST: run.summary.digest,
    }
    return replace(read, header=header, values=values, notes=[])


def _find_divergences(recorded: Results) -> set[int]:
    """Return the positions of the first and the last round in which each client
    diverged, from which readers describe the divergences.
    """
    values = recorded.values
    diverged = values.columns.get(DIVERGED, np.zeros(0)) == 1
    clients = values.ids[diverged].tolist()
    rounds = values.entry_rounds[diverged].tolist()
    first = dict(zip(clients[::-1], rounds[::-1], strict=True))
    last = dict(zip(clients, rounds, strict=True))
    return {*first.values(), *last.values()}


def _list_parts(score: str) -> set[str]:
    """Return the names of the recorded metrics of clients from which a score is
    computed.
    """
    known = measures.find_built_in(score)
    if isinstance(known, Ratio):
        return {known.part, "total"}
    return {score}


def _cut_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved configuration in which paths are shortened to their last name."""
    table = deepcopy(dict(config))
    for section, key in PATHS:
        path = table[section].get(key)
        if path is not None:
            table[section][key] = Path(path).name
    table["data"]["root"] = None
    return table


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run in an archive: its folder, with the parent folder if
    several runs have the same. Raises UserError.
    """
    short = [run.label for run in runs]
    names = []
    for run, name in zip(runs, short, strict=True):
        if short.count(name) > 1:
            name = f"{run.folder.absolute().parent.name} {name}"
        try:
            names.append(untrusted_files.checked(name, FileName))
        except Damaged as error:
            raise UserError(f"{run.folder}: cannot be packed ({error})") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two runs have the name '{twice}'; pack them into two files")
    return names


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file without owner or date, so that equal runs make equal archives."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
