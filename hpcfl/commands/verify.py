"""``hpcfl verify``: repeat runs from their stored configuration and compare results.

On the same arithmetic (processor, libraries, GPUs) the final state and every number must
be bit-identical, for any number of ranks. On another arithmetic the last bits differ, and
the differences grow during training. In that case only quantities that are independent
of rounding are compared (the samples of each client and the floats sent), and both final
scores are shown.
"""

import random
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.commands.run import run as play
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import Interrupted, RunFailure, UserError, suggest
from hpcfl.experiment import config, plugins
from hpcfl.files import atomic
from hpcfl.files.atomic import describe_reason
from hpcfl.report.text import escape
from hpcfl.scores.metric_names import SECONDS, MetricName
from hpcfl.simulation import start_checks
from hpcfl.simulation.start_checks import INPUTS
from hpcfl.storage.results import Results
from hpcfl.trained import loading
from hpcfl.trained.run import Run

# entries of the header that affect the last bits of results
ARITHMETIC = ("arithmetic", "gpus")
LIBRARIES = ("torch", "numpy")
# keys of [runtime] that affect results; other keys are specific to a machine
COMPUTED_BY = ("threads", "precision", "lanes", "lane_table", "convolutions")
# numbers that depend on the number of ranks
MEASURED = ("bytes_down", "bytes_up")


def verify(
    path: Path,
    sample: int,
    names: Sequence[str],
    root: Path | None,
    own: Collection[str],
    communicator: Communicator,
) -> None:
    """Repeat some runs and print a line for each. Collective.

    Args:
        path: Folder with runs, or a file of packed runs.
        sample: Number of runs to draw at random; all runs if there are fewer.
        names: Labels of the runs to repeat; if given, ``sample`` has no effect.
        root: Folder of data sets; None as for ``hpcfl run``.
        own: User plugins that may be imported.
        communicator: Communicator of the ranks that repeat the runs.

    Raises:
        UserError: If there are no such runs, or a run cannot be repeated here.
        RunFailure: If a final state or a number differs.
        Interrupted: If a signal stops the command; finished repetitions are discarded.
    """
    with ExitStack() as stack:
        chosen: list[Run] = []
        tables: list[dict[str, Any]] = []
        folder = Path()
        with agreed(communicator):
            if communicator.is_server:
                chosen, notes = choose_runs(path, sample, names)
                for note in notes:
                    print(escape(f"note: {note}"), file=sys.stderr)
                tables = [make_table(run, root, own) for run in chosen]
                try:
                    # The ranks of all hosts see the working folder.
                    place = atomic.make_temporary_folder(Path(), "hpcfl-verify")
                    folder = stack.enter_context(place)
                except OSError as error:
                    raise UserError(
                        f"the working folder cannot be written ({describe_reason(error)}), but "
                        "verify runs in it; change to another folder"
                    ) from None
        tables, name = communicator.bcast([tables, str(folder)])
        try:
            wrong = _play(tables, chosen, Path(name), communicator)
        except Interrupted as stopped:
            raise Interrupted(
                f"{path}: stopped, and finished repetitions are discarded; "
                "the same command starts over",
                begun=False,
            ) from stopped
    if any(communicator.allgather(wrong)):
        raise RunFailure(f"{path}: repeated runs differ from the stored results")


def _play(
    tables: list[dict[str, Any]],
    chosen: list[Run],
    folder: Path,
    communicator: Communicator,
) -> int:
    """Repeat runs in a folder and print a line for each. Collective.

    Args:
        tables: Configurations of the runs.
        chosen: Stored runs on rank 0.
        folder: Folder of the repetitions.
        communicator: Communicator of all ranks.

    Returns:
        Number of runs that differ from ``chosen``, on rank 0.
    """
    wrong = 0
    for number, table in enumerate(tables):
        with agreed(communicator):
            experiment = config.parse(table)
        place = folder / str(number)
        play(experiment, place, communicator)
        if communicator.is_server:
            lines, same = compare(chosen[number], loading.load_run(place))
            wrong += not same
            for line in lines:
                print(escape(f"{chosen[number].label}: {line}"), flush=True)
    return wrong


def compare(stored: Run, played: Run) -> tuple[list[str], bool]:
    """Compare a stored run with its repetition.

    Returns:
        Lines to print, and whether the repetition agrees.
    """
    stored = replace(stored, results=_leave_out_ends(stored, played))
    there, here = stored.results.header, played.results.header
    others = _describe_changes(_find_arithmetic(there), _find_arithmetic(here))
    changed = _describe_changes(_find_inputs(there), _find_inputs(here))
    differing = _list_differing(stored, played)
    digests = (stored.summary.digest, played.summary.digest)
    if not others:
        decisions = start_checks.list_changed_decisions(
            there.get("decisions"), here.get("decisions")
        )
        reasons = [f"{decision} when the run began" for decision in decisions]
        reasons += changed
        if digests[0] not in (None, digests[1]):
            found = f"the final states differ: {digests[0]} stored, {digests[1]} now"
            return [found, *reasons], False
        if differing:
            return [f"these numbers differ: {', '.join(differing)}", *reasons], False
        kept = "the same final state" if digests[0] else "no final state was stored"
        rounds = len(stored.results.rounds)
        return [f"{kept}, and the same numbers in all {rounds} rounds"], True
    lines = [f"computed with different arithmetic: {'; '.join(others)}", *changed]
    of_structure = [name for name in differing if _is_exact(name)]
    if of_structure:
        lines.append(
            f"arithmetic does not change these numbers, which differ: "
            f"{', '.join(of_structure)}"
        )
    if len(lines) > 1:
        return lines, False
    numbers = [
        run.summary.last[run.score] for run in (stored, played) if run.summary.last
    ]
    shown = " stored, ".join(stored.measure.format(number) for number in numbers)
    lines.append(
        f"the same clients, samples and floats; {stored.counted} of the last round {shown} now"
    )
    return lines, True


def choose_runs(
    path: Path, sample: int, names: Sequence[str]
) -> tuple[list[Run], list[str]]:
    """Return the stored runs to repeat, sorted by name, and notes on runs left out.

    Args:
        path: Folder with runs, or a file of packed runs.
        sample: Number of runs to draw at random.
        names: Names of runs; a name is the label, or the path if several runs share the
            label.

    Raises:
        UserError: If no run is finished or a name is unknown.
    """
    runs, notes = loading.load_runs_below([path])
    labels = Counter(run.label for run in runs)
    finished: dict[str, Run] = {}
    for run in runs:
        if run.summary.finished:
            is_alone = labels[run.label] == 1
            name = run.label if is_alone else str(run.folder.relative_to(path))
            finished[name] = run
        else:
            played = f"{run.summary.rounds} of {run.config['rounds']} rounds"
            notes.append(f"{run.folder}: left out, not finished ({played})")
    if not finished:
        raise UserError(f"{path}: no run is finished")
    for name in names:
        if name not in finished:
            hint = suggest(name, list(finished))
            raise UserError(f"{path}: no finished run '{name}'{hint}")
    drawn = names or random.sample(sorted(finished), min(sample, len(finished)))
    return [finished[name] for name in sorted(drawn)], notes


def make_table(run: Run, root: Path | None, own: Collection[str]) -> dict[str, Any]:
    """Return the configuration that repeats a run on this machine.

    Args:
        run: Stored run.
        root: Folder of data sets, or None.
        own: User plugins that may be imported.

    Raises:
        UserError: If the run needs a user plugin that ``own`` does not name.
    """
    plugins.refuse_unnamed(run.config, own, run.label)
    table: dict[str, Any] = deepcopy(dict(run.config))
    table["protocol"] = None  # the configuration includes the protocol's defaults
    table["data"]["root"] = None if root is None else str(root)
    runtime = table["runtime"]
    table["runtime"] = {key: runtime[key] for key in COMPUTED_BY if key in runtime}
    if runtime.get("device") == "cpu":
        table["runtime"]["device"] = "cpu"
    table.pop("checkpoint", None)
    return table


def _find_arithmetic(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a header that affect the last bits of results."""
    versions = header.get("versions", {})
    entries = {}
    for key in ARITHMETIC:
        entries[key] = header.get(key)
    for name in LIBRARIES:
        entries[name] = versions.get(name)
    return entries


def _describe_changes(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a text for each entry of a stored run that its repetition has changed."""
    lines = []
    for name, value in there.items():
        now = here.get(name)
        if now != value:
            lines.append(f"{name}: {value} stored, {now} now")
    return lines


def _leave_out_ends(stored: Run, played: Run) -> Results:
    """Return the stored results without rounds that were scored only because they were
    the last ones before the run was prolonged.
    """
    rounds, every = played.config["rounds"], played.config["evaluation"]["every"]
    found = stored.results
    ends = [end for end in found.completed if end < rounds and end % every]
    return found.select_rounds(np.flatnonzero(~np.isin(found.rounds, ends)))


def _find_inputs(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksums of a run's inputs at its first start, by their names.

    Runs of earlier versions stored none.
    """
    checksums = {}
    for start in header.get("starts", [])[:1]:
        for name, checksum in start.get(INPUTS, {}).items():
            checksums[f"checksum of {name}"] = checksum
    return checksums


def _list_differing(stored: Run, played: Run) -> list[str]:
    """Return the names of stored values that the repetition does not reproduce."""
    names = []
    for part, counts in stored.results.static.items():
        now = played.results.static.get(part)
        if now is None or not np.array_equal(counts, now):
            names.append(part)
    rounds = stored.results.rounds
    rows = np.flatnonzero(np.isin(played.results.rounds, rounds))
    if len(rows) < len(rounds):
        return [*names, "rounds"]
    played_again = played.results.select_rounds(rows)
    for name in stored.results.names:
        if name.column == SECONDS or name.number in MEASURED:
            continue
        series, now = stored.results.get_series(name), played_again.get_series(name)
        if not np.array_equal(series, now, equal_nan=series.dtype.kind == "f"):
            names.append(str(name))
    return names


def _is_exact(name: str) -> bool:
    """Return whether a number is independent of rounding."""
    counted = ("train_counts", "test_counts", "rounds", "total", "floats")
    return MetricName.parse(name).number.startswith(counted)
