"""Runs in rows and columns by keys of their configurations; those of an entry differ in
their seeds only.

Runs are compared in a frame of pandas that has a row for each run and a column for each
key. Its cells are the values as texts, so that lists can be compared too and a key that
a run lacks is one that is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, protocols
from hpcfl.experiment.config import MIXED
from hpcfl.experiment.plugin_keys import SELECTORS
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    import pandas

# where the user names no keys
ROWS = ("method.name",)
COLUMNS = ("data.dataset", "partition.scheme")
SEEDS = ("seed", "partition.seed")  # runs that differ in nothing else are repetitions
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
# columns of the frame that are no keys: a number for each experiment and seed, the
# checksum of the final state, and the labels
EXPERIMENT, DIGEST, ROW, COLUMN = "experiment", "digest", "row", "column"
Setting = dict[str, Any]  # dotted key → value


class Placed(NamedTuple):
    """A run, and its configuration and origin by dotted key."""

    run: Run
    setting: Setting


@dataclass(frozen=True)
class Arrangement:
    """Runs, each experiment once, in the rows and columns of a table.

    Attributes:
        placed: The runs of one entry after the other, those of an entry in the order of
            their seeds.
        places: The labels of the row and the column of each of them.
        down: The keys that rows are called by.
        across: The keys that columns are called by.
        notes: A line for each run that was left out.
    """

    placed: list[Placed]
    places: list[tuple[str, str]]
    down: list[str]
    across: list[str]
    notes: list[str]

    @property
    def cells(self) -> dict[tuple[str, str], list[Placed]]:
        """The runs of each entry by the labels of its row and column."""
        cells: dict[tuple[str, str], list[Placed]] = {}
        for place, placed in zip(self.places, self.placed, strict=True):
            cells.setdefault(place, []).append(placed)
        return cells

    @property
    def rows(self) -> list[str]:
        """The labels of all rows, sorted as ``_sorted`` says."""
        labels = [row for row, _ in self.places]
        return _sorted(labels, self.placed, self.down)

    @property
    def columns(self) -> list[str]:
        """The labels of all columns, sorted as ``_sorted`` says."""
        labels = [column for _, column in self.places]
        return _sorted(labels, self.placed, self.across)

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of ``placed``."""
        return [placed.run for placed in self.placed]

    @property
    def repetitions(self) -> dict[tuple[str, str], list[Run]]:
        """The runs in each row and column."""
        return {
            place: [placed.run for placed in cell] for place, cell in self.cells.items()
        }

    def column(self, label: str) -> dict[str, list[Placed]]:
        """What stands in a column, by row."""
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

    Of the same run in several folders the first is taken. Two runs that have one
    configuration and ended in other states stand apart, by what is recorded of where
    they were made.

    Args:
        runs: At least one.
        rows: Dotted keys that name rows; a section, such as ``method``, stands for the
            key that names its plugin. By default the method, and whatever else differs
            between runs.
        columns: Dotted keys that name columns, by default the data set, the partition,
            and whatever else differs in the data.
        unfinished: Whether runs that are not finished are placed too.
        options: Where the user gives keys, for errors.

    Raises:
        UserError: If no run is finished, or if the user's keys do not suffice to keep
            different experiments apart, or are no keys.
    """
    stand = _unfinished(runs, unfinished)
    runs = [run for run in runs if unfinished or run.summary.finished]
    if not runs:
        raise UserError("; ".join(["no run is finished yet", *stand]))
    settings = [setting_of(run) | origin(run) for run in runs]
    frame = _frame(settings)
    rows, columns = _whole(rows), _whole(columns)
    for key in (*rows, *columns):
        if key not in frame:
            hint = plugins.suggest_from_many(key, list(frame))
            raise UserError(f"'{key}' is no key of these runs{hint}")
    of_experiments = [key for key in frame if not key.startswith((*IGNORED, *ORIGIN))]
    # A key in which no run differs sets none apart, and pandas takes long to group by a
    # hundred of them.
    experiment_keys = _varied(frame, of_experiments) or of_experiments[:1]
    frame[EXPERIMENT] = frame.groupby(experiment_keys, sort=False).ngroup()
    frame[DIGEST] = [run.summary.digest for run in runs]
    down, across = _axes(frame, experiment_keys, rows, columns, options)
    frame[ROW] = [label(setting, down) for setting in settings]
    frame[COLUMN] = [label(setting, across) for setting in settings]
    order = _without_copies(frame)
    return Arrangement(
        [Placed(runs[position], settings[position]) for position in order],
        [(frame.at[position, ROW], frame.at[position, COLUMN]) for position in order],
        down,
        across,
        [*_notes_on_copies(frame, runs), *stand],
    )


def setting_of(run: Run) -> Setting:
    """A run's configuration by dotted key, without what makes no other experiment.

    Mixed precision makes another one and stands there as ``precision``.
    """
    everything = protocols.flat(run.config)
    setting = {
        key: content
        for key, content in everything.items()
        if not key.startswith(IGNORED)
    }
    if everything.get("runtime.precision") == MIXED:
        setting["precision"] = MIXED
    return setting


def varied_keys(runs: Sequence[Run]) -> list[str]:
    """The dotted keys in which runs differ, in alphabetical order."""
    frame = _frame([setting_of(run) for run in runs])
    return _varied(frame, list(frame))


def origin(run: Run) -> Setting:
    """What is recorded of where and how a run was made that may change its numbers, by
    dotted key.
    """
    recorded = {
        key: run.results.header.get(key)
        for key in ("commit", "versions", "processor", "arithmetic", "gpus")
    }
    return {
        key: content
        for key, content in protocols.flat({**recorded, **run.config}).items()
        if key.startswith(ORIGIN)
    }


def seeds(setting: Setting) -> Setting:
    """The part of a setting in which repetitions differ."""
    return {key: setting.get(key) for key in SEEDS}


def called(settings: Sequence[Setting]) -> list[str]:
    """What repetitions are called, such as ``seed=2``: by as few of ``SEEDS`` as tell
    all of them apart.
    """

    def names(keys: Sequence[str]) -> list[str]:
        return [
            " ".join(f"{key}={setting.get(key)}" for key in keys)
            for setting in settings
        ]

    whole = names(SEEDS)
    for key in SEEDS:
        if len(set(names([key]))) == len(set(whole)):
            return names([key])
    return whole


def label(setting: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A row's or column's label, such as ``fedavg lr=0.1``, from the values of its
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
        elif ends.count(end) > 1:
            parts.append(f"{key}={content}")
        else:
            parts.append(f"{end}={content}")
    return " ".join(parts)


def _unfinished(runs: Sequence[Run], placed: bool) -> list[str]:
    """A line for each run that is not finished. placed: whether it is shown anyway."""
    lines = []
    for run in runs:
        if not run.summary.finished:
            left_out = "" if placed else "left out, "
            played = f"round {run.summary.rounds} of {run.config['rounds']}"
            lines.append(f"{run.label}: {left_out}it stands at {played}")
    return lines


def _whole(keys: Sequence[str]) -> list[str]:
    """Keys where a section, such as ``method``, stands for the key that names its
    plugin.
    """
    return [f"{key}.{SELECTORS[key]}" if key in SELECTORS else key for key in keys]


def _sorted(
    labels: Sequence[str], placed: Sequence[Placed], keys: Sequence[str]
) -> list[str]:
    """Each label once, sorted by one key after the other: numbers ascending, other
    values after them in the runs' order.

    Args:
        labels: Of each of the runs ``placed``.
        placed: In the runs' order.
        keys: What the labels are made of.
    """
    settings: dict[str, Setting] = {}
    for name, run in zip(labels, placed, strict=True):
        settings.setdefault(name, run.setting)
    known = {key: [setting.get(key) for setting in settings.values()] for key in keys}

    def place(label: str) -> list[tuple[bool, float]]:
        places: list[tuple[bool, float]] = []
        for key in keys:
            content = settings[label].get(key)
            if isinstance(content, int | float):
                places.append((False, content))
            else:
                places.append((True, known[key].index(content)))
        return places

    return sorted(settings, key=place)


def _frame(settings: Sequence[Setting]) -> "pandas.DataFrame":
    """A row for each run and a column for each key, in alphabetical order; the values
    are texts, as objects of Python: of few runs pandas' own texts take longer.
    """
    import pandas

    keys = sorted({*ROWS, *COLUMNS, *SEEDS}.union(*settings))
    return pandas.DataFrame(
        {key: [repr(setting.get(key)) for setting in settings] for key in keys},
        dtype=object,
    )


def _axes(
    frame: "pandas.DataFrame",
    experiment_keys: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
    options: str,
) -> tuple[list[str], list[str]]:
    """The keys of rows and of columns, so many that runs of the same entry differ in
    their seeds only.

    Raises:
        UserError: If the user's ``rows`` and ``columns`` do not suffice for that.
    """
    keys = [key for key in _varied(frame, experiment_keys) if key not in SEEDS]
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    if not columns:
        # Numbers of different data stand in different columns, also where no entry
        # would mix them.
        for key in keys:
            if key.startswith(OF_DATA) and key not in (*down, *across):
                across.append(key)
    while varied := _varied_apart(frame, keys, [*down, *across]):
        of_data = varied[0] in keys and varied[0].startswith(OF_DATA)
        named, axis = (columns, across) if of_data else (rows, down)
        if named:
            of_plugins = [key for key in varied if key in PLUGINS]
            key = (of_plugins or varied)[0]
            raise UserError(
                f"runs of the same entry differ in {key}; add it to {options}"
            )
        axis.append(varied[0])
    return down, across


def _varied(frame: "pandas.DataFrame", keys: Sequence[str]) -> list[str]:
    """Those of ``keys`` in which runs differ."""
    return [key for key in keys if len(set(frame[key])) > 1]


def _varied_apart(
    frame: "pandas.DataFrame", keys: Sequence[str], used: Sequence[str]
) -> list[str]:
    """What sets runs apart that agree in all of ``used``: those of ``keys`` in which
    they differ, either all of the data or none of them.

    Where there are none, and runs of one experiment ended in other states, what is
    recorded of where these were made. A run whose state was not kept may be a copy of
    any other.
    """
    varied = _varied_within(frame, keys, used)
    if varied:
        of_data = varied[0].startswith(OF_DATA)
        return [key for key in varied if key.startswith(OF_DATA) == of_data]
    copied = [EXPERIMENT, *used]
    digests = frame.groupby(copied, sort=False)[DIGEST]
    ended_apart = frame[digests.transform("nunique") > 1]
    origin_keys = [key for key in frame if key.startswith(ORIGIN)]
    return _varied_within(ended_apart, origin_keys, copied)


def _varied_within(
    frame: "pandas.DataFrame", keys: Sequence[str], used: Sequence[str]
) -> list[str]:
    """Those of ``keys`` in which runs differ that agree in all of ``used``, the key
    first by which most entries differ.
    """
    entries = frame.groupby(list(used), sort=False)
    counts = {key: (entries[key].nunique() > 1).sum() for key in _varied(frame, keys)}
    varied = [key for key in counts if counts[key] and key not in used]
    return sorted(varied, key=lambda key: -counts[key])


def _without_copies(frame: "pandas.DataFrame") -> list[int]:
    """The positions of the first run of each experiment in an entry, one entry after
    the other, and in each in the order of the seeds.
    """
    firsts = frame.drop_duplicates([ROW, COLUMN, EXPERIMENT])
    positions: list[int] = []
    for _, entry in firsts.groupby([ROW, COLUMN], sort=False):
        positions += entry.sort_values(list(SEEDS)).index.tolist()
    return positions


def _notes_on_copies(frame: "pandas.DataFrame", runs: Sequence[Run]) -> list[str]:
    """A line for each run that is left out because its entry has the same one."""
    places = [frame[ROW], frame[COLUMN], frame[EXPERIMENT]]
    firsts = frame.index.to_series().groupby(places).transform("first")
    notes = []
    for position, first in firsts.items():
        if position == first:
            continue
        if frame.loc[[first, position], DIGEST].nunique() < 2:
            reason = f"it is the same run as {runs[first].folder}"
        else:
            reason = (
                f"its configuration is that of {runs[first].folder}, but it ended in "
                "another state, and nothing that was recorded says why"
            )
        notes.append(f"{runs[position].folder}: left out, {reason}")
    return notes
