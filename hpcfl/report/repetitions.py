"""Which runs are repetitions of one another, and by which keys the others are told apart."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.experiment.plugin_keys import SELECTORS
from hpcfl.report import summary
from hpcfl.report.summary import Run
from hpcfl.storage import run_folder

ROWS, COLUMNS = ("method.name",), ("data.dataset", "partition.scheme")  # where the user names no keys
SEEDS = ("seed", "partition.seed")  # runs that differ in nothing else are repetitions
# keys and sections that do not make another experiment
IGNORED = ("name", "runtime.", "checkpoint.", "data.root", "partition.file", "evaluation.scores")
OF_DATA = ("data.", "partition.")  # keys that set the data
Setting = dict[str, Any]  # dotted key → value


@dataclass(frozen=True)
class Placed:
    """Runs, each experiment once, and where each belongs in a table.

    settings: the keys that make each run's experiment. down, across: those by which rows and columns are
    called. notes: a line for each run that was left out.
    """

    runs: list[Run]
    settings: list[Setting]
    down: list[str]
    across: list[str]
    notes: list[str]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The labels of each run's row and column."""
        return [(label(setting, self.down), label(setting, self.across)) for setting in self.settings]

    @property
    def cells(self) -> dict[tuple[str, str], list[Run]]:
        """The runs that are repetitions of one another, by the labels of their row and column."""
        found: dict[tuple[str, str], list[Run]] = {}
        for run, place in zip(self.runs, self.places, strict=True):
            found.setdefault(place, []).append(run)
        return found


def runs_below(folder: Path, own: Collection[str] = ()) -> list[Run]:
    """The runs in a folder and in all folders below it, but for those that ``--fresh`` moved aside.

    own: as for ``summary.load``. Raises UserError if there are none.
    """
    folders = sorted(below for below in folder.glob("**/") if run_folder.is_run(below))  # with the folder
    runs = [summary.load(below, own) for below in folders
            if not any(run_folder.is_aside(part) for part in (below, *below.parents))]
    if not runs:
        raise UserError(f"{folder}: no run of hpcfl here")
    return runs


def placed(runs: list[Run], rows: Sequence[str] = (), columns: Sequence[str] = (),
           unfinished: bool = False, options: str = "--rows or --columns") -> Placed:
    """The finished runs and their places. Raises UserError where none is finished, or keys do not suffice.

    rows, columns: dotted keys of the configuration, or a section for the key that names its plugin; if empty,
    method × data set and partition, and whatever else differs between runs. unfinished: whether runs that are
    not finished are placed too. options: where the user gives keys, for the error.
    """
    done, notes = _without_copies([run for run in runs if unfinished or run.summary.finished])
    stand = {run.label: f"it stands at round {run.summary.rounds} of {run.config['rounds']}"
             for run in runs if not run.summary.finished}
    notes += [f"{run}: {where if unfinished else f'left out, {where}'}" for run, where in stand.items()]
    if not done:
        raise UserError("; ".join(["no run is finished yet", *notes]))
    settings = [_setting(run.config) for run in done]
    down, across = _axes(settings, _whole(rows), _whole(columns), options)
    return Placed(done, settings, down, across, notes)


def label(setting: Setting, keys: Iterable[str]) -> str:
    """A row's or column's label, such as ``fedavg lr=0.1``, from the values of its keys."""
    parts = []
    for key in keys:
        if (content := setting.get(key)) is not None:
            last = key.rpartition(".")[2]
            parts.append(str(content) if last in ("name", "dataset", "scheme") else f"{last}={content}")
    return " ".join(parts)


def varied(runs: Sequence[Run]) -> list[str]:
    """The dotted keys in which runs differ."""
    settings = [_setting(run.config) for run in runs]
    return sorted(key for key in set().union(*settings)
                  if any(setting.get(key) != settings[0].get(key) for setting in settings))


def share_a_partition(settings: list[Setting]) -> bool:
    """Whether runs differ in their seed, and all have the same seed of the partition."""
    return (len({setting.get("seed") for setting in settings}) > 1
            and len({setting.get("partition.seed") for setting in settings}) == 1)


def _without_copies(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """The first run of each configuration, and a note for each other one."""
    first: dict[str, Run] = {}
    notes = []
    for run in runs:
        same = first.setdefault(repr(sorted(_setting(run.config).items())), run)
        if same is not run:
            notes.append(f"{run.folder}: left out, it is the same run as {same.folder}")
    return list(first.values()), notes


def _setting(config: Mapping[str, Any], prefix: str = "") -> Setting:
    """The configuration as dotted keys, without what does not make another experiment."""
    flat: Setting = {}
    for key, content in config.items():
        if not any(f"{prefix}{key}." == name or (prefix + key) == name for name in IGNORED):
            flat |= (_setting(content, f"{prefix}{key}.") if isinstance(content, dict)
                     else {prefix + key: content})
    return flat


def _whole(keys: Sequence[str]) -> list[str]:
    """Keys where a section, such as ``method``, stands for the key that names its plugin."""
    return [f"{key}.{SELECTORS[key]}" if key in SELECTORS else key for key in keys]


def _axes(settings: list[Setting], rows: Sequence[str], columns: Sequence[str],
          options: str) -> tuple[list[str], list[str]]:
    """The keys of rows and of columns, so many that runs of the same entry differ in their seeds only.

    Raises UserError if the user's ``rows`` and ``columns`` do not suffice for that.
    """
    known = sorted({key for setting in settings for key in setting})
    for key in (*rows, *columns):
        if key not in known:
            raise UserError(f"'{key}' is no key of these runs{plugins.nearest(key, known)}")
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    # numbers of different data stand in different columns, also where no entry would mix them
    if not columns:
        across += [key for key in known if key.startswith(OF_DATA) and key not in (*down, *across, *SEEDS)
                   and any(setting.get(key) != settings[0].get(key) for setting in settings)]
    while lacking := _differing(settings, known, (*down, *across)):
        of_data = lacking.startswith(OF_DATA)
        if columns if of_data else rows:
            raise UserError(f"runs of the same entry differ in {lacking}; add it to {options}")
        (across if of_data else down).append(lacking)
    return down, across


def _differing(settings: list[Setting], known: list[str], used: Iterable[str]) -> str | None:
    """A key, other than seeds, in which runs differ that agree in all of ``used``; None if there is none."""
    groups: dict[tuple[str, ...], Setting] = {}
    for setting in settings:
        first = groups.setdefault(tuple(repr(setting.get(key)) for key in used), setting)
        for key in known:
            if key not in SEEDS and first.get(key) != setting.get(key):
                return key
    return None
