"""``hpcfl verify``: play runs again from their stored configuration, and say whether the
same comes out.

On the same arithmetic (processor, libraries, GPUs) the final state and every number must
be the same, bit for bit, on whatever ranks. On another one last bits differ, and with
them in time everything that is trained; then only what does not depend on them is
compared, who holds which samples and what travels, and both last numbers are shown.
"""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.commands.run import run as play
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import Interrupted, RunFailure, UserError, suggest
from hpcfl.experiment import config, plugins
from hpcfl.files import atomic
from hpcfl.files.atomic import describe_reason
from hpcfl.report.text import plain
from hpcfl.scores.metric_names import SECONDS, MetricName
from hpcfl.simulation import start_checks
from hpcfl.trained import loading
from hpcfl.trained.run import Run

# entries of the header that the last bits of results depend on
ARITHMETIC = ("arithmetic", "gpus")
LIBRARIES = ("torch", "numpy")
# keys of [runtime] that change what is computed; others are this machine's own
COMPUTED_BY = ("threads", "precision", "lanes", "lane_table", "convolutions")
# numbers that depend on the ranks and on the clock
MEASURED = ("bytes_down", "bytes_up")


def verify(
    path: Path,
    sample: int,
    names: Sequence[str],
    root: Path | None,
    own: Collection[str],
    communicator: Communicator,
) -> None:
    """Play some runs again and print a line for each. Collective.

    Args:
        path: A folder with runs, or a file of packed ones.
        sample: How many, chosen at random; all where there are no more.
        names: Which ones, by label, instead.
        root: Where data sets lie here; by default as for ``hpcfl run``.
        own: The user's own plugins that may be imported.
        communicator: Of the ranks that play.

    Raises:
        UserError: There are no such runs, or one cannot be played here.
        RunFailure: Another final state or other numbers came out.
        Interrupted: Stopped by a signal. What was played so far is not kept.
    """
    with ExitStack() as stack:
        chosen: list[Run] = []
        tables: list[dict[str, Any]] = []
        folder = Path()
        with agreed(communicator):
            if communicator.is_server:
                chosen = choose_runs(path, sample, names)
                tables = [make_table(run, root, own) for run in chosen]
                try:
                    # in the working folder, which the ranks of all hosts see
                    place = atomic.make_temporary_folder(Path(), "hpcfl-verify")
                    folder = stack.enter_context(place)
                except OSError as error:
                    raise UserError(
                        f"the working folder cannot be written ({describe_reason(error)}), and "
                        "verify plays runs in it; go to another folder"
                    ) from None
        tables, name = communicator.bcast([tables, str(folder)])
        try:
            wrong = _play(tables, chosen, Path(name), communicator)
        except Interrupted as stopped:
            raise Interrupted(
                f"{path}: stopped, and what was played is not kept; "
                "the same command begins anew",
                begun=False,
            ) from stopped
    if communicator.allreduce_max(wrong):
        raise RunFailure(f"{path}: not what was stored came out")


def _play(
    tables: list[dict[str, Any]],
    chosen: list[Run],
    folder: Path,
    communicator: Communicator,
) -> int:
    """Play runs again in a folder and print a line for each. Return on rank 0 how many
    differ from ``chosen``. Collective call.
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
                print(plain(f"{chosen[number].label}: {line}"), flush=True)
    return wrong


def compare(stored: Run, played: Run) -> tuple[list[str], bool]:
    """Compare a stored run with its repetition.

    Returns:
        Lines to say, and whether it came out as it should.
    """
    there, here = stored.results.header, played.results.header
    others = _other_arithmetic(there, here)
    differing = _differing(stored, played)
    digests = (stored.summary.digest, played.summary.digest)
    if not others:
        if digests[0] is not None and digests[0] != digests[1]:
            changes = start_checks.list_changed_decisions(
                there.get("decisions"), here.get("decisions")
            )
            reasons = [f"{change} when the run began" for change in changes]
            return [
                f"ANOTHER final state: {digests[0]} stored, {digests[1]} now",
                *reasons,
            ], False
        if differing:
            return [f"OTHER numbers: {', '.join(differing)}"], False
        kept = "the same final state" if digests[0] else "no final state was stored"
        rounds = len(stored.results.rounds)
        return [f"{kept}, and the same numbers in all {rounds} rounds"], True
    lines = [f"made with another arithmetic: {'; '.join(others)}"]
    of_structure = [name for name in differing if _is_exact(name)]
    if of_structure:
        lines.append(f"OTHER {', '.join(of_structure)}, which no arithmetic changes")
        return lines, False
    numbers = [
        run.summary.last[run.score] for run in (stored, played) if run.summary.last
    ]
    shown = " stored, ".join(stored.measure.shown(number) for number in numbers)
    lines.append(
        f"the same clients, samples and floats; {stored.counted} of the last round {shown} now"
    )
    return lines, True


def choose_runs(path: Path, sample: int, names: Sequence[str]) -> list[Run]:
    """Return the runs to play again, in the order of their names. Names are labels, or
    paths where several runs share a label. Raises UserError.
    """
    runs, _ = loading.runs_below([path])
    labels = Counter(run.label for run in runs)
    finished: dict[str, Run] = {}
    for run in runs:
        if run.summary.finished:
            is_alone = labels[run.label] == 1
            name = run.label if is_alone else str(run.folder.relative_to(path))
            finished[name] = run
    if not finished:
        raise UserError(f"{path}: no run is finished")
    for name in names:
        if name not in finished:
            hint = suggest(name, list(finished))
            raise UserError(f"{path}: no finished run '{name}'{hint}")
    drawn = names or random.sample(sorted(finished), min(sample, len(finished)))
    return [finished[name] for name in sorted(drawn)]


def make_table(run: Run, root: Path | None, own: Collection[str]) -> dict[str, Any]:
    """Return the configuration that repeats a run here. Raises UserError."""
    plugins.refuse_unnamed(run.config, own, run.label)
    table: dict[str, Any] = deepcopy(dict(run.config))
    table["protocol"] = None  # its defaults are in the configuration already
    table["data"]["root"] = None if root is None else str(root)
    runtime = table["runtime"]
    table["runtime"] = {key: runtime[key] for key in COMPUTED_BY if key in runtime}
    if runtime.get("device") == "cpu":
        table["runtime"]["device"] = "cpu"
    table.pop("checkpoint", None)
    return table


def _other_arithmetic(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Describe the differences in settings that the last bits depend on."""
    lines = []
    for key in ARITHMETIC:
        if there.get(key) != here.get(key):
            lines.append(f"{key} {there.get(key)} there, {here.get(key)} here")
    for name in LIBRARIES:
        versions = [header.get("versions", {}).get(name) for header in (there, here)]
        if versions[0] != versions[1]:
            lines.append(f"{name} {versions[0]} there, {versions[1]} here")
    return lines


def _differing(stored: Run, played: Run) -> list[str]:
    """Return the names of stored values that differ now."""
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
        series, now = stored.results.series(name), played_again.series(name)
        if not np.array_equal(series, now, equal_nan=series.dtype.kind == "f"):
            names.append(str(name))
    return names


def _is_exact(name: str) -> bool:
    """Return whether a number is the same in every arithmetic."""
    counted = ("train_counts", "test_counts", "rounds", "total", "floats")
    return MetricName.parse(name).number.startswith(counted)
