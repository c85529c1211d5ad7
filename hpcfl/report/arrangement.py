"""Arrange runs in the rows and columns of a table by keys of their configurations.

Runs in the same entry of the table differ only in their seeds. Runs are compared in a
pandas frame with a row for each run and a column for each key. Its cells hold the
values as texts, so that lists can be compared. A key that a run lacks has the text of
None.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pandas import DataFrame

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import MIXED
from hpcfl.experiment.plugins import SELECTORS
from hpcfl.trained.run import Run

# keys of rows and columns if the user names none
ROWS = ("method.name",)
COLUMNS = ("data.dataset", "partition.scheme")
SEEDS = ("seed", "partition.seed")  # runs that differ in nothing else are repetitions
# key with the number of the search that chose a run's configuration; set if a tuning has
# several searches
SEARCH = "tune.search"
REPEATED = (*SEEDS, SEARCH)
# keys and sections that do not define an experiment
IGNORED = (
    "name",
    "runtime.",
    "checkpoint.",
    "data.root",
    "partition.file",
    "evaluation.scores",
)
# Prefixes of keys that can change the numbers of the same experiment: keys of the
# configuration, and recorded properties of the software and machine.
ORIGIN = (
    "commit",
    "versions.",
    "runtime.precision",
    "runtime.device",
    "runtime.threads",
    "runtime.lanes",
    "processor",
    "arithmetic",
    "gpus",
    "partition.file",
    "data.root",
)
OF_DATA = ("data.", "partition.")  # prefixes of keys that define the data
# Keys that select a plugin. A plugin adds keys; if runs use different plugins, this key
# labels them.
PLUGINS = tuple(f"{section}.{key}" for section, key in SELECTORS.items())
# keys to choose before other keys that separate as many runs
FIRST = ("aggregation.rule", "attack.kind", "compression.kind")
# Columns of the frame besides the keys: a number for each experiment and seed, the
# digest of the final state, and the labels of row and column.
EXPERIMENT, DIGEST, ROW, COLUMN = "experiment", "digest", "row", "column"
Setting = dict[str, Any]  # dotted key → value


class Placed(NamedTuple):
    """A run with its row and column in a table.

    Attributes:
        run: Run.
        setting: Configuration and origin of the run by dotted key.
        row: Label of the run's row.
        column: Label of the run's column.
    """

    run: Run
    setting: Setting
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Arrangement:
    """Runs in the rows and columns of a table, without copies of the same run.

    Attributes:
        placed: Runs grouped by table entry; within an entry in the order of their seeds.
        down: Keys whose values label the rows.
        across: Keys whose values label the columns.
        notes: Messages, one for each run that was left out.
    """

    placed: list[Placed]
    down: list[str]
    across: list[str]
    notes: list[str]

    @property
    def cells(self) -> dict[tuple[str, str], list[Placed]]:
        """Return the runs of each entry by the labels of its row and column."""
        cells: dict[tuple[str, str], list[Placed]] = {}
        for placed in self.placed:
            cells.setdefault((placed.row, placed.column), []).append(placed)
        return cells

    @property
    def rows(self) -> list[str]:
        """Return the labels of all rows, sorted by the values of their keys."""
        return _sort_labels(self.down, [(one.row, one.setting) for one in self.placed])

    @property
    def columns(self) -> list[str]:
        """Return the labels of all columns, sorted by the values of their keys."""
        return _sort_labels(
            self.across, [(one.column, one.setting) for one in self.placed]
        )

    @property
    def runs(self) -> list[Run]:
        """Return all runs, in the order of ``placed``."""
        return [placed.run for placed in self.placed]

    def column(self, label: str) -> dict[str, list[Placed]]:
        """Return the entries of a column, by row."""
        return {
            row: cell for (row, column), cell in self.cells.items() if column == label
        }


def arrange(
    runs: Sequence[Run],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    unfinished: bool = False,
    options: str = "--rows or --columns",
) -> Arrangement:
    """Arrange finished runs in rows and columns by keys of their configurations.

    If a run occurs in several folders, only the first finished copy is included. If
    runs of one configuration ended in different states, their labels include their
    origin.

    Args:
        runs: Runs, at least one.
        rows: Dotted keys of the rows. A section such as ``method`` means the key that
            selects its plugin. Default: the method and the keys in which runs of one
            method differ.
        columns: Dotted keys of the columns. Default: the data set, the partition and
            the other keys of the data that differ.
        unfinished: Whether to include unfinished runs.
        options: Names of the command's options for rows and columns, for error
            messages.

    Raises:
        UserError: If no run is finished, if a key is unknown, or if the keys given do
            not separate all experiments.
    """
    left_out = _describe_unfinished(runs, unfinished)
    runs = [run for run in runs if unfinished or run.summary.finished]
    if not runs:
        raise UserError("; ".join(["no run is finished yet", *left_out]))
    # Finished runs come first, because further copies of a run are left out.
    runs = sorted(runs, key=lambda run: not run.summary.finished)
    settings = [find_setting(run) | find_origin(run) for run in runs]
    _merge_searches(runs, settings)
    frame = _make_frame(settings)
    rows, columns = _complete(rows), _complete(columns)
    for key in (*rows, *columns):
        if key not in frame:
            hint = suggest(key, list(frame))
            raise UserError(f"unknown key '{key}' for these runs{hint}")
    keys = [key for key in frame if not key.startswith((*IGNORED, *ORIGIN))]
    # Grouping by a hundred keys is slow in pandas, and most keys have one value.
    keys = _find_varied(frame, keys) or keys[:1]
    frame[EXPERIMENT] = frame.groupby(keys, sort=False).ngroup()
    frame[DIGEST] = [
        run.summary.digest if run.summary.finished else None for run in runs
    ]
    down, across = _choose_keys(frame, keys, rows, columns, options=options)
    frame[ROW] = [make_label(setting, down) for setting in settings]
    frame[COLUMN] = [make_label(setting, across) for setting in settings]
    firsts = frame.drop_duplicates([ROW, COLUMN, EXPERIMENT])
    placed = []
    for (row, column), entry in firsts.groupby([ROW, COLUMN], sort=False):
        in_order = entry.sort_values(list(SEEDS), key=lambda seeds: seeds.str.zfill(20))
        for position in in_order.index:
            placed.append(Placed(runs[position], settings[position], row, column))
    return Arrangement(
        placed, down, across, [*_describe_copies(frame, runs), *left_out]
    )


def find_search(run: Run) -> int | None:
    """Return the number of the search that chose the configuration of a final run.

    The label of such a run is METHOD,search=NUMBER,tuned,seed=SEED. A packed run has no
    other record of its search.

    Returns:
        Number of the search; None for a tuning with one search and for other runs.
    """
    match run.label.split(","):
        case [_, search, "tuned", _]:
            key, _, number = search.partition("=")
            if key == "search" and number.isdecimal():
                return int(number)
    return None


def _merge_searches(runs: Sequence[Run], settings: Sequence[Setting]) -> None:
    """Treat the searches of a method as repetitions of one experiment.

    This removes the keys in which the chosen configurations differ from ``settings``.
    """
    methods: dict[tuple[Any, ...], list[Setting]] = {}
    for run, setting in zip(runs, settings, strict=True):
        search = find_search(run)
        if search is not None:
            setting[SEARCH] = search
            column = setting["evaluation.score"]
            of_method = run.folder.parent, setting["method.name"], column
            methods.setdefault(of_method, []).append(setting)
    for alike in methods.values():
        for key in _find_varied(_make_frame(alike), sorted(set().union(*alike))):
            if key not in REPEATED and not key.startswith(ORIGIN):
                for setting in alike:
                    setting.pop(key, None)


def find_setting(run: Run) -> Setting:
    """Return a run's configuration by dotted key, without keys that do not define an
    experiment. Mixed precision does define one and is added as ``precision``.
    """
    setting = {}
    for key, content in experiment_file.flatten(run.config).items():
        if not key.startswith(IGNORED):
            setting[key] = content
        elif key == "runtime.precision" and content == MIXED:
            setting["precision"] = MIXED
    return setting


def find_varied_keys(runs: Sequence[Run]) -> list[str]:
    """Return the dotted keys in which runs differ, in alphabetical order."""
    frame = _make_frame([find_setting(run) for run in runs])
    return _find_varied(frame, list(frame))


def find_origin(run: Run) -> Setting:
    """Return the recorded properties of software and machine that can change a run's
    numbers, by dotted key.
    """
    known = experiment_file.flatten({**run.results.header, **run.config})
    return {key: known[key] for key in known if key.startswith(ORIGIN)}


def name_repetitions(settings: Sequence[Setting]) -> list[str]:
    """Return a name for each repetition, such as ``seed=2``.

    The name includes the partition's seed if the run's seed does not identify the
    repetition.
    """
    seeds = _make_frame(settings)[list(SEEDS)]
    keys = list(SEEDS)
    for key in reversed(SEEDS):
        if seeds[key].nunique() == len(seeds.drop_duplicates()):
            keys = [key]
    return [" ".join(f"{key}={one.get(key)}" for key in keys) for one in settings]


def make_label(setting: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the label of a row or column, such as ``fedavg lr=0.1``.

    Args:
        setting: Configuration of a run by dotted key.
        keys: Keys whose values form the label.
    """
    parts = []
    for key in keys:
        content = setting.get(key)
        if content is not None:
            parts.append(experiment_file.write_label(key, content, keys))
    return " ".join(parts)


def _describe_unfinished(runs: Sequence[Run], placed: bool) -> list[str]:
    """Return a line for each unfinished run. ``placed``: whether the table includes it."""
    left_out = "" if placed else "left out, "
    return [
        f"{run.label}: {left_out}it is at round {run.summary.rounds} of "
        f"{run.config['rounds']}"
        for run in runs
        if not run.summary.finished
    ]


def _complete(keys: Sequence[str]) -> list[str]:
    """Replace each section, such as ``method``, by the key that selects its plugin."""
    return [f"{key}.{SELECTORS[key]}" if key in SELECTORS else key for key in keys]


def _sort_labels(
    keys: Sequence[str], labelled: Sequence[tuple[str, Setting]]
) -> list[str]:
    """Return each label once, sorted by the values of its keys.

    Numbers come first in ascending order; other values follow in the order of the runs.
    """
    places: dict[str, list[float]] = {}
    for name, setting in labelled:
        contents = [setting.get(key) for key in keys]
        numbers = [
            content if isinstance(content, int | float) else math.inf
            for content in contents
        ]
        places.setdefault(name, numbers)
    return sorted(places, key=places.__getitem__)


def _make_frame(settings: Sequence[Setting]) -> DataFrame:
    """Return a frame with a row for each run and a column for each key, sorted by key.

    The cells are Python strings in object columns, which are faster than pandas' own
    string columns for few runs.
    """
    keys = sorted({*ROWS, *COLUMNS, *SEEDS}.union(*settings))
    texts = {key: [repr(setting.get(key)) for setting in settings] for key in keys}
    return DataFrame(texts, dtype=object)


def _choose_keys(
    frame: DataFrame,
    experiment_keys: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    options: str,
) -> tuple[list[str], list[str]]:
    """Return the keys of rows and of columns.

    Keys are added until runs in the same entry differ only in their seeds.

    Args:
        frame: Frame of runs, with the columns EXPERIMENT and DIGEST.
        experiment_keys: Keys that define an experiment.
        rows: Keys of the rows that the user gave.
        columns: Keys of the columns that the user gave.
        options: Names of the command's options for rows and columns, for error
            messages.

    Raises:
        UserError: If ``rows`` and ``columns`` do not separate all experiments.
    """
    keys = [key for key in _find_varied(frame, experiment_keys) if key not in REPEATED]
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    if not columns:
        # Results on different data belong in different columns, even if separate rows
        # would keep them apart.
        named = (*down, *across)
        across += [k for k in keys if k.startswith(OF_DATA) and k not in named]
    while varied := _find_mixed(frame, keys, [*down, *across]):
        of_data = varied[0] in keys and varied[0].startswith(OF_DATA)
        given, axis = (columns, across) if of_data else (rows, down)
        if given:
            selected = [key for key in varied if key in PLUGINS]
            key = (selected or varied)[0]
            raise UserError(
                f"runs in the same table entry differ in {key}; add it to {options}"
            )
        axis.append(varied[0])
    return down, across


def _find_varied(frame: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the keys of ``keys`` in which runs differ."""
    return [key for key in keys if len(set(frame[key])) > 1]


def _find_mixed(
    frame: DataFrame, keys: Sequence[str], used: Sequence[str]
) -> list[str]:
    """Return the keys in which runs with equal values of ``used`` differ, most frequent
    first.

    If no such key exists, return keys of the origin that separate runs of one
    experiment with different final states.
    """
    varied = _find_varied_within(frame, keys, used)
    if varied:
        return varied
    same = [EXPERIMENT, *used]
    ends = frame.groupby(same, sort=False)[DIGEST].transform("nunique")
    origin_keys = [key for key in frame if key.startswith(ORIGIN)]
    return _find_varied_within(frame[ends > 1], origin_keys, same)


def _find_varied_within(
    frame: DataFrame, keys: Sequence[str], used: Sequence[str]
) -> list[str]:
    """Return the keys of ``keys`` in which runs with equal values of ``used`` differ.

    The keys that separate most entries come first; among equals, those of FIRST.
    """
    varied = [key for key in _find_varied(frame, keys) if key not in used]
    varied.sort(key=lambda key: key not in FIRST)
    if not varied:
        return []
    entries = frame.groupby(list(used), sort=False)
    counts = entries[varied].nunique().gt(1).sum()
    in_order = counts[counts > 0].sort_values(ascending=False, kind="stable")
    return list(in_order.index)


def _describe_copies(frame: DataFrame, runs: Sequence[Run]) -> list[str]:
    """Return a line for each run that is left out as a copy of another run."""
    notes = []
    for _, copies in frame.groupby([ROW, COLUMN, EXPERIMENT], sort=False):
        first, *others = copies.index
        for position in others:
            reason = f"it is the same run as {runs[first].folder}"
            if copies.loc[[first, position], DIGEST].nunique() > 1:
                reason = (
                    f"it has the configuration of {runs[first].folder} and ended in "
                    "another state; no recorded key of its origin explains the "
                    "difference"
                )
            notes.append(f"{runs[position].folder}: left out, {reason}")
    return notes
