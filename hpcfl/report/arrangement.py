"""Runs in rows and columns by keys of their configurations; those of an entry differ in
their seeds only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, protocols
from hpcfl.experiment.plugin_keys import SELECTORS
from hpcfl.report.summary import Run

ROWS, COLUMNS = (
    ("method.name",),
    ("data.dataset", "partition.scheme"),
)  # where the user names no keys
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
    "gpus",
    "partition.file",
    "data.root",
)
OF_DATA = ("data.", "partition.")  # keys that set the data
# keys that bring others with them: where runs differ in one, it is this that sets them
# apart
PLUGINS = ("data.dataset", *(f"{section}.{key}" for section, key in SELECTORS.items()))
Setting = dict[str, Any]  # dotted key → value


class Placed(NamedTuple):
    """A run, and its configuration and origin by dotted key."""

    run: Run
    setting: Setting


@dataclass(frozen=True)
class Arrangement:
    """Runs, each experiment once, in the rows and columns of a table.

    cells: the repetitions in a row and column, in the order of their seeds; by labels,
        in the runs' order.
    down, across: the keys that rows and columns are called by. notes: a line for each
        run that was left out.
    """

    cells: dict[tuple[str, str], list[Placed]]
    down: list[str]
    across: list[str]
    notes: list[str]

    @property
    def rows(self) -> list[str]:
        """The labels of all rows, sorted as ``_sorted`` says."""
        settings: dict[str, Setting] = {}
        for (row, _), cell in self.cells.items():
            settings.setdefault(row, cell[0].setting)
        return _sorted(settings, self.down)

    @property
    def columns(self) -> list[str]:
        """The labels of all columns, sorted as ``_sorted`` says."""
        settings: dict[str, Setting] = {}
        for (_, column), cell in self.cells.items():
            settings.setdefault(column, cell[0].setting)
        return _sorted(settings, self.across)

    @property
    def placed(self) -> list[Placed]:
        """All runs, cell after cell."""
        return [placed for cell in self.cells.values() for placed in cell]

    @property
    def runs(self) -> list[Run]:
        """All runs, cell after cell."""
        return [placed.run for placed in self.placed]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The labels of each run's row and column, in the order of ``runs``."""
        return [place for place, cell in self.cells.items() for _ in cell]

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
    """Put the finished runs into rows and columns by dotted keys of their
    configurations.

    A section stands for the key that names its plugin. Where no keys are given these
    are method × data set and partition, and whatever else differs between runs. Of the
    same run in several folders the first is taken. Two that have one configuration and
    ended in other states are apart, by what is recorded of where
    they were made. unfinished: whether runs that are not finished are placed too.
        options: where the user gives keys, for errors. Raises UserError if no run is
        finished, or if the user's keys do not suffice or are none.
    """
    stand = [
        f"{run.label}: {'' if unfinished else 'left out, '}it stands at round {run.summary.rounds} of "
        f"{run.config['rounds']}"
        for run in runs
        if not run.summary.finished
    ]
    runs = [run for run in runs if unfinished or run.summary.finished]
    if not runs:
        raise UserError("; ".join(["no run is finished yet", *stand]))
    rows, columns = _whole(rows), _whole(columns)
    settings = [setting_of(run) for run in runs]
    wholes = [
        setting | origin(run) for setting, run in zip(settings, runs, strict=True)
    ]
    known = sorted({key for whole in wholes for key in whole})
    for key in (*rows, *columns):
        if key not in known:
            raise UserError(f"'{key}' is no key of these runs{plugins.few(key, known)}")
    down, across = _axes(wholes, settings, rows, columns, options)
    while lacking := _between_copies(runs, settings, wholes, (*down, *across)):
        if rows:
            raise UserError(
                f"runs of the same entry differ in {lacking}; add it to {options}"
            )
        down.append(lacking)
    places = [(label(whole, down), label(whole, across)) for whole in wholes]
    kept, notes = _without_copies(runs, settings, places)
    cells: dict[tuple[str, str], list[Placed]] = {}
    for i in kept:
        cells.setdefault(places[i], []).append(Placed(runs[i], wholes[i]))
    return Arrangement(
        {
            place: sorted(cell, key=lambda placed: repr(seeds(placed.setting)))
            for place, cell in cells.items()
        },
        down,
        across,
        [*notes, *stand],
    )


def setting_of(run: Run) -> Setting:
    """A run's configuration as dotted keys, without what does not make another
    experiment.
    """
    return {
        key: content
        for key, content in protocols.flat(run.config).items()
        if not key.startswith(IGNORED)
    }


def varied_keys(runs: Sequence[Run]) -> list[str]:
    """The dotted keys in which runs differ."""
    settings = [setting_of(run) for run in runs]
    return sorted(
        key
        for key in set().union(*settings)
        if any(setting.get(key) != settings[0].get(key) for setting in settings)
    )


def origin(run: Run) -> Setting:
    """What is recorded of where and how a run was made that may change its numbers, by
    dotted key.
    """
    recorded = {
        key: run.results.header.get(key)
        for key in ("commit", "versions", "processor", "gpus")
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
        if (content := setting.get(key)) is not None:
            name = key if ends.count(end) > 1 else end
            parts.append(
                str(content)
                if end in ("name", "dataset", "scheme")
                else f"{name}={content}"
            )
    return " ".join(parts)


def _whole(keys: Sequence[str]) -> list[str]:
    """Keys where a section, such as ``method``, stands for the key that names its
    plugin.
    """
    return [f"{key}.{SELECTORS[key]}" if key in SELECTORS else key for key in keys]


def _sorted(settings: Mapping[str, Setting], keys: Sequence[str]) -> list[str]:
    """Labels sorted by one key after the other: numbers ascending, other values after
    them in the runs' order.

    settings: of each label, in the runs' order.
    """
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


def _axes(
    wholes: list[Setting],
    settings: list[Setting],
    rows: Sequence[str],
    columns: Sequence[str],
    options: str,
) -> tuple[list[str], list[str]]:
    """The keys of rows and of columns, so many that runs of the same entry differ in
    their seeds only.

    wholes: ``settings`` with where the runs were made. Raises UserError if the user's
    ``rows`` and ``columns`` do not suffice for that.
    """
    known = sorted({key for setting in settings for key in setting})
    down, across = list(rows or ROWS), list(columns or COLUMNS)
    # numbers of different data stand in different columns, also where no entry would
    # mix them
    if not columns:
        across += [
            key
            for key in known
            if key.startswith(OF_DATA)
            and key not in (*down, *across, *SEEDS)
            and any(setting.get(key) != settings[0].get(key) for setting in settings)
        ]
    while lacking := _differing(wholes, known, (*down, *across)):
        of_data = lacking.startswith(OF_DATA)
        if columns if of_data else rows:
            bringing = [key for key in PLUGINS if key.startswith(OF_DATA) == of_data]
            lacking = _differing(wholes, bringing, (*down, *across)) or lacking
            raise UserError(
                f"runs of the same entry differ in {lacking}; add it to {options}"
            )
        (across if of_data else down).append(lacking)
    return down, across


def _differing(
    settings: list[Setting], known: list[str], used: Iterable[str]
) -> str | None:
    """A key, other than seeds, in which runs differ that agree in all of ``used``; None
    if there is none.
    """
    groups: dict[tuple[str, ...], Setting] = {}
    for setting in settings:
        first = groups.setdefault(
            tuple(repr(setting.get(key)) for key in used), setting
        )
        for key in known:
            if key not in SEEDS and first.get(key) != setting.get(key):
                return key
    return None


def _between_copies(
    runs: Sequence[Run],
    settings: list[Setting],
    wholes: list[Setting],
    used: Sequence[str],
) -> str | None:
    """What sets two runs of one setting apart that agree in ``used`` and ended in other
    states, a key.

    None if there are no such runs, or nothing that was recorded says why.
    """
    firsts: dict[str, int] = {}
    for i, (run, setting, whole) in enumerate(zip(runs, settings, wholes, strict=True)):
        first = firsts.setdefault(repr((setting, [whole.get(key) for key in used])), i)
        if not _end_alike(run, runs[first]):
            for key in sorted(whole.keys() | wholes[first].keys()):
                if whole.get(key) != wholes[first].get(key):
                    return key
    return None


def _without_copies(
    runs: Sequence[Run], settings: list[Setting], places: list[tuple[str, str]]
) -> tuple[list[int], list[str]]:
    """The positions of the first run of each setting in a place, and a note for each
    other run.
    """
    firsts: dict[str, int] = {}
    notes = []
    for i, (run, setting, place) in enumerate(zip(runs, settings, places, strict=True)):
        first = runs[firsts.setdefault(repr((setting, place)), i)]
        if first is not run:
            notes.append(
                f"{run.folder}: left out, "
                + (
                    f"it is the same run as {first.folder}"
                    if _end_alike(run, first)
                    else f"its configuration is that of {first.folder}, but it ended in another state, "
                    "and nothing that was recorded says why"
                )
            )
    return list(firsts.values()), notes


def _end_alike(one: Run, other: Run) -> bool:
    """Whether two runs have the same final state, as far as both still know theirs."""
    return (
        None in (one.summary.digest, other.summary.digest)
        or one.summary.digest == other.summary.digest
    )
