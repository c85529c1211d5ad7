"""Runs in rows and columns by keys of their configurations; those of an entry differ in
their seeds only.

Runs are compared in a frame of pandas that has a row for each run and a column for each
key. Its cells are the values as texts, so that lists can be compared too and a key that
a run lacks is one that is None.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pandas import DataFrame

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import experiment_file
from hpcfl.experiment.experiment_file import MIXED
from hpcfl.experiment.plugins import SELECTORS
from hpcfl.trained.run import Run

# where the user names no keys
ROWS = ("method.name",)
COLUMNS = ("data.dataset", "partition.scheme")
SEEDS = ("seed", "partition.seed")  # runs that differ in nothing else are repetitions
# the search that chose a run's configuration, where a tuning repeats it
SEARCH = "tune.search"
REPEATED = (*SEEDS, SEARCH)
# keys and sections that do not make another experiment
IGNORED = (
    "name",
    "runtime.",
    "checkpoint.",
    "data.root",
    "partition.file",
    "evaluation.scores",
)
# what may change numbers all the same: beginnings of keys of the configuration, and of
# where a run was made
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
OF_DATA = ("data.", "partition.")  # keys that set the data
# keys that bring others with them: where runs differ in one, it is this that sets them
# apart
PLUGINS = tuple(f"{section}.{key}" for section, key in SELECTORS.items())
# those of sections whose other keys would be less telling
FIRST = ("aggregation.rule", "attack.kind", "compression.kind")
# columns of the frame that are no keys: a number for each experiment and seed, the
# checksum of the final state, and the labels
EXPERIMENT, DIGEST, ROW, COLUMN = "experiment", "digest", "row", "column"
Setting = dict[str, Any]  # dotted key → value


class Placed(NamedTuple):
    """A run in a table.

    Attributes:
        run: The run.
        setting: Its configuration and origin by dotted key.
        row: The label of its row.
        column: The label of its column.
    """

    run: Run
    setting: Setting
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Arrangement:
    """Runs, each experiment once, in the rows and columns of a table.

    Attributes:
        placed: The runs of one entry after the other, those of an entry in the order of
            their seeds.
        down: The keys that rows are called by.
        across: The keys that columns are called by.
        notes: A line for each run that was left out.
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
    """Put the finished runs into rows and columns by keys of their configurations.

    Of the same run in several folders the first is taken. Runs of one configuration
    that ended in other states are labelled with their origin.

    Args:
        runs: At least one.
        rows: Dotted keys that name rows; a section, such as ``method``, stands for the
            key that names its plugin. By default the method, and the keys in which runs
            of one method differ.
        columns: Dotted keys that name columns, by default the data set, the partition,
            and the other keys of the data that differ.
        unfinished: Whether runs that are not finished are placed too.
        options: Where the user gives keys, for errors.

    Raises:
        UserError: If no run is finished, or if the user's keys do not suffice to keep
            different experiments apart, or are no keys.
    """
    left_out = _describe_unfinished(runs, unfinished)
    runs = [run for run in runs if unfinished or run.summary.finished]
    if not runs:
        raise UserError("; ".join(["no run is finished yet", *left_out]))
    settings = [setting_of(run) | origin(run) for run in runs]
    _merge_searches(runs, settings)
    frame = _make_frame(settings)
    rows, columns = _complete(rows), _complete(columns)
    for key in (*rows, *columns):
        if key not in frame:
            hint = suggest(key, list(frame))
            raise UserError(f"'{key}' is no key of these runs{hint}")
    keys = [key for key in frame if not key.startswith((*IGNORED, *ORIGIN))]
    # Pandas takes long to group by a hundred keys, of which most are alike.
    keys = _find_varied(frame, keys) or keys[:1]
    frame[EXPERIMENT] = frame.groupby(keys, sort=False).ngroup()
    frame[DIGEST] = [run.summary.digest for run in runs]
    down, across = _choose_keys(frame, keys, rows, columns, options)
    frame[ROW] = [label(setting, down) for setting in settings]
    frame[COLUMN] = [label(setting, across) for setting in settings]
    firsts = frame.drop_duplicates([ROW, COLUMN, EXPERIMENT])
    placed = []
    for (row, column), entry in firsts.groupby([ROW, COLUMN], sort=False):
        for position in entry.sort_values(list(SEEDS)).index:
            placed.append(Placed(runs[position], settings[position], row, column))
    return Arrangement(
        placed, down, across, [*_describe_copies(frame, runs), *left_out]
    )


def find_search(run: Run) -> int | None:
    """Return the search that chose a final run's configuration; None where a tuning has
    one search, and for other runs.
    """
    found = re.search(r",search=(\d+),tuned,seed=\d+$", run.label)
    return int(found[1]) if found else None


def _merge_searches(runs: Sequence[Run], settings: Sequence[Setting]) -> None:
    """Let the searches of a method be repetitions of one experiment.

    The keys in which their choices differ are left out of the settings.
    """
    methods: dict[tuple[Any, ...], list[Setting]] = {}
    for run, setting in zip(runs, settings, strict=True):
        search = find_search(run)
        if search is not None:
            setting[SEARCH] = search
            moment = setting["evaluation.score"]
            of_method = run.folder.parent, setting["method.name"], moment
            methods.setdefault(of_method, []).append(setting)
    for alike in methods.values():
        for key in _find_varied(_make_frame(alike), sorted(set().union(*alike))):
            if key not in REPEATED and not key.startswith(ORIGIN):
                for setting in alike:
                    setting.pop(key, None)


def setting_of(run: Run) -> Setting:
    """Return a run's configuration by dotted key, without keys that make no other
    experiment; mixed precision makes one and is called ``precision``.
    """
    setting = {}
    for key, content in experiment_file.flat(run.config).items():
        if not key.startswith(IGNORED):
            setting[key] = content
        elif key == "runtime.precision" and content == MIXED:
            setting["precision"] = MIXED
    return setting


def varied_keys(runs: Sequence[Run]) -> list[str]:
    """Return the dotted keys in which runs differ, in alphabetical order."""
    frame = _make_frame([setting_of(run) for run in runs])
    return _find_varied(frame, list(frame))


def origin(run: Run) -> Setting:
    """Return the recorded software, machine and settings that may change a run's
    numbers, by dotted key.
    """
    known = experiment_file.flat({**run.results.header, **run.config})
    return {key: known[key] for key in known if key.startswith(ORIGIN)}


def name_repetitions(settings: Sequence[Setting]) -> list[str]:
    """Return names of repetitions, such as ``seed=2``, with their partition's seed where
    that is needed.
    """
    seeds = _make_frame(settings)[list(SEEDS)]
    keys = list(SEEDS)
    for key in reversed(SEEDS):
        if seeds[key].nunique() == len(seeds.drop_duplicates()):
            keys = [key]
    return [" ".join(f"{key}={one.get(key)}" for key in keys) for one in settings]


def label(setting: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return a row's or column's label, such as ``fedavg lr=0.1``, from the values of its
    keys.
    """
    ends = [key.rpartition(".")[2] for key in keys]
    parts = []
    for key, end in zip(keys, ends, strict=True):
        content = setting.get(key)
        if content is None:
            continue
        if end in ("name", "dataset", "scheme"):
            parts.append(str(content))
        else:
            parts.append(f"{end if ends.count(end) == 1 else key}={content}")
    return " ".join(parts)


def _describe_unfinished(runs: Sequence[Run], placed: bool) -> list[str]:
    """Return a line for each run that is not finished; ``placed``: whether it is shown."""
    left_out = "" if placed else "left out, "
    return [
        f"{run.label}: {left_out}it stands at round {run.summary.rounds} of "
        f"{run.config['rounds']}"
        for run in runs
        if not run.summary.finished
    ]


def _complete(keys: Sequence[str]) -> list[str]:
    """Replace a section, such as ``method``, by the key that names its plugin."""
    return [f"{key}.{SELECTORS[key]}" if key in SELECTORS else key for key in keys]


def _sort_labels(
    keys: Sequence[str], labelled: Sequence[tuple[str, Setting]]
) -> list[str]:
    """Return each label once, sorted by one key after the other: numbers ascending,
    other values after them in the runs' order.
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
    """Return a row for each run and a column for each key, in alphabetical order; values
    are Python texts, which are faster than pandas' own for few runs.
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
    """Return the keys of rows and of columns, so many that runs of the same entry differ
    in their seeds only.

    Raises:
        UserError: If the user's ``rows`` and ``columns`` do not suffice for that.
    """
    keys = [key for key in _find_varied(frame, experiment_keys) if key not in REPEATED]
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    if not columns:
        # Numbers of different data belong in different columns, also where no entry
        # would mix them.
        named = (*down, *across)
        across += [k for k in keys if k.startswith(OF_DATA) and k not in named]
    while varied := _find_mixed(frame, keys, [*down, *across]):
        of_data = varied[0] in keys and varied[0].startswith(OF_DATA)
        given, axis = (columns, across) if of_data else (rows, down)
        if given:
            selected = [key for key in varied if key in PLUGINS]
            key = (selected or varied)[0]
            raise UserError(
                f"runs of the same entry differ in {key}; add it to {options}"
            )
        axis.append(varied[0])
    return down, across


def _find_varied(frame: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return those of ``keys`` in which runs differ."""
    return [key for key in keys if len(set(frame[key])) > 1]


def _find_mixed(
    frame: DataFrame, keys: Sequence[str], used: Sequence[str]
) -> list[str]:
    """Return the keys in which runs differ that agree in all of ``used``, most frequent
    first; else those of the origin where runs of one experiment ended in other states.
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
    """Return those of ``keys`` in which runs differ that agree in all of ``used``, the
    most frequent first; of equally frequent ones FIRST first.
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
    """Return a line for each run that is left out because its entry has the same one."""
    notes = []
    for _, copies in frame.groupby([ROW, COLUMN, EXPERIMENT], sort=False):
        first, *others = copies.index
        for position in others:
            reason = f"it is the same run as {runs[first].folder}"
            if copies.loc[[first, position], DIGEST].nunique() > 1:
                reason = (
                    f"it has the configuration of {runs[first].folder} and ended in "
                    "another state; no recorded origin explains that"
                )
            notes.append(f"{runs[position].folder}: left out, {reason}")
    return notes
