"""Results of a run in memory and in HDF5 files: metrics of rounds, and sparse metrics
of clients.

A round with a hundred of a million clients has a hundred entries, in memory and in a
file. Arrays [T, clients] are created on request.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import atomic, hdf5, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.scores.metric_names import MetricName
from hpcfl.storage.forms import AnotherRun, Header, check_run

KIND = "metrics"
MERGED = "metrics.h5"
ROUNDS = "rounds"  # folder of unmerged rounds
RUN = "run"  # header entry with the fingerprint of the run
COMPLETED = "completed"  # header entry with ``Results.completed``
# Datasets with the client of each entry (see ``Metrics``) and the first entry of each
# round, and the attribute with the number of clients.
IDS, STARTS = "entries/client", "entries/starts"
CLIENT_COUNT = "client_count"
STATIC, VALUES = "partition/", "values/"
MOST_CLIENTS = 10**9
ATTEMPTS = 100  # attempts to read; each checkpoint can disturb at most one of them
# Metric that is 1 in round R + 1, the scoring after the last aggregation, and 0 in
# played rounds.
FINAL = "final"
GROUP = "group"  # static array with the group of each client, [clients]
# static arrays with the partition's numbers of samples, [clients, classes]
COUNTS = ("train_counts", "test_counts")
# header entry of packed runs with the digest of the final state, which is not packed
DIGEST = "digest"
# limit for a run's results in bytes: 2,000 rounds, 25,000 clients, 10 numbers each
LIMIT = 4 << 30
Columns = Mapping[str, np.ndarray]
Positions = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Metrics(Mapping[str, np.ndarray]):
    """Metrics by name: [T] of T rounds, and [T, clients] of clients, created on
    request.

    Metrics of clients are N entries, sorted by round and then by client. Missing values
    are NaN (floats) or −1 (integers).

    Attributes:
        of_rounds: metrics of rounds by name, [T].
        starts: first entry of each round; entries of round t are ``starts[t]`` to
            ``starts[t + 1]``, exclusive, int64 [T + 1].
        ids: client of each entry, int64 [N].
        columns: metrics of clients by name, [N].
        clients: number of clients of the run; 0 if no client has a metric.
    """

    of_rounds: Columns = field(default_factory=dict)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Columns = field(default_factory=dict)
    clients: int = 0

    @property
    def entry_rounds(self) -> np.ndarray:
        """Return the position of the round of each entry, int64 [N]."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            return self.of_rounds[name]
        rounds = len(self.starts) - 1
        size = 8 * rounds * self.clients
        if size > LIMIT:
            raise UserError(
                f"'{name}' of {self.clients:,} clients in {rounds:,} rounds "
                f"would be {size:,} bytes, more than {LIMIT:,}"
            )
        column = self.columns[name]
        series = make_missing((rounds, self.clients), column.dtype)
        series[self.entry_rounds, self.ids] = column
        return series

    def __contains__(self, name: object) -> bool:
        return name in self.of_rounds or name in self.columns

    def __iter__(self) -> Iterator[str]:
        yield from self.of_rounds
        yield from self.columns

    def __len__(self) -> int:
        return len(self.of_rounds) + len(self.columns)

    def select_rounds(self, positions: Positions) -> "Metrics":
        """Return the metrics of the rounds at the given positions, in this order."""
        chosen = np.asarray(positions, np.int64)
        if np.array_equal(chosen, np.arange(len(self.starts) - 1)):
            return self
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # All entries of a round move by the same distance.
        shifts = self.starts[chosen] - starts[:-1]
        entries = np.arange(starts[-1]) + np.repeat(shifts, lengths)
        of_rounds = {name: array[chosen] for name, array in self.of_rounds.items()}
        columns = {name: column[entries] for name, column in self.columns.items()}
        return replace(
            self,
            of_rounds=of_rounds,
            starts=starts,
            ids=self.ids[entries],
            columns=columns,
        )

    def select_names(self, names: Sequence[str]) -> "Metrics":
        """Return the metrics with the given names."""
        of_rounds = {
            name: self.of_rounds[name] for name in names if name in self.of_rounds
        }
        columns = {name: self.columns[name] for name in names if name in self.columns}
        return replace(self, of_rounds=of_rounds, columns=columns)


def make_one_round(ids: np.ndarray, columns: Columns, clients: int) -> Metrics:
    """Return the metrics of some clients in one round; arguments as in ``Metrics``."""
    starts = np.array([0, len(ids)])
    return Metrics(starts=starts, ids=ids, columns=columns, clients=clients)


NO_CLIENTS = make_one_round(np.zeros(0, np.int64), {}, clients=0)


@dataclass(frozen=True)
class Results:
    """Results of a run, or of a part of it: T rounds.

    Attributes:
        header: JSON-able entries.
        static: arrays that do not depend on rounds, by name.
        rounds: numbers of the rounds, int64 [T], ascending.
        values: metrics.
        completed: numbers of rounds R after which the run was scored as round R + 1,
            ascending; several if the run was prolonged.
        notes: one line for each damaged file, which was ignored.
    """

    header: dict[str, Any] = field(default_factory=dict)
    static: dict[str, np.ndarray] = field(default_factory=dict)
    rounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    values: Metrics = field(default_factory=Metrics)
    completed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def played(self) -> np.ndarray:
        """Return whether each round was played, bool [T]; other rounds are final
        scorings.
        """
        played: np.ndarray = self.values.get(FINAL, np.zeros(len(self.rounds))) != 1
        return played

    @property
    def is_packed(self) -> bool:
        """Return whether the results come from a packed file.

        These files contain only the rounds that tables use (``trained/packed.py``).
        """
        return DIGEST in self.header

    def select_rounds(self, positions: Positions) -> "Results":
        """Return the results of the rounds at the given positions."""
        rounds = self.rounds[np.asarray(positions, int)]
        return replace(self, rounds=rounds, values=self.values.select_rounds(positions))

    @property
    def names(self) -> list[MetricName]:
        """Return the names of all metrics."""
        return [MetricName.parse(text) for text in self.values]

    def get_series(self, name: MetricName) -> np.ndarray:
        """Return the values of a metric, [T] or of clients [T, clients]; NaN [T] if
        missing.
        """
        nothing = np.full(len(self.rounds), np.nan)
        return self.values.get(str(name), nothing)


def make_round(
    number: int, values: Mapping[str, Any], clients: Metrics = NO_CLIENTS
) -> Results:
    """Return the results of one round.

    Args:
        number: number of the round.
        values: numbers of the round, and arrays [clients] of all clients, by name.
        clients: further metrics of some clients.
    """
    of_rounds, of_all = {}, {}
    count = clients.clients
    for name, value in values.items():
        array = widen(np.asarray(value))
        if array.ndim:
            of_all[name] = array
            count = len(array)
        else:
            of_rounds[name] = array[None]
    if of_all:
        for name, column in clients.columns.items():
            of_all[name] = make_missing(count, column.dtype)
            of_all[name][clients.ids] = column
        clients = make_one_round(np.arange(count), of_all, count)
    metrics = replace(clients, of_rounds=of_rounds)
    return Results(rounds=np.array([number]), values=metrics)


def merge(parts: Sequence[Results]) -> Results:
    """Return all rounds of several parts, ascending, with the header of the first part.

    A round that occurs in several parts is taken from the last of them. Raises
    UserError for parts that cannot belong to one run.
    """
    kept: list[Results] = []
    newer = set[int]()
    for part in reversed(parts):
        numbers = part.rounds.tolist()
        older = [row for row, number in enumerate(numbers) if number not in newer]
        kept.insert(0, part.select_rounds(older))
        newer.update(numbers)
    _check_together(kept)
    rounds = np.concatenate([np.empty(0, np.int64), *(part.rounds for part in kept)])
    order = np.argsort(rounds)
    metrics = _concatenate([part.values for part in kept]).select_rounds(order)
    completed = set[int]().union(*map(find_completed, parts))
    first = parts[0] if parts else Results()
    return replace(
        first, rounds=rounds[order], values=metrics, completed=sorted(completed)
    )


def drop_later(part: Results, rounds: int | None) -> Results:
    """Return the results of a run of ``rounds`` rounds, and of its final scoring; None
    for all results.
    """
    if rounds is None:
        return part
    last = rounds + ~part.played  # the final scoring has the number R + 1
    return part.select_rounds(np.flatnonzero(part.rounds <= last))


def find_completed(part: Results) -> set[int]:
    """Return the numbers of rounds after which a file's run was scored to the end."""
    scored_last = part.rounds[~part.played] - 1
    return {*part.completed, *scored_last.tolist()}


def _check_together(parts: Sequence[Results]) -> None:
    """Raise UserError if the parts cannot belong to one run."""
    clients = sorted(set[int]().union(*map(count_clients, parts)))
    if len(clients) > 1:
        raise UserError(
            f"results of different runs: one file has {clients[0]} clients, "
            f"another {clients[1]}"
        )
    metrics = [part.values for part in parts]
    rounds = sum(len(part.rounds) for part in parts)
    entries = sum(len(one.ids) for one in metrics)
    of_rounds = set[str]().union(*(one.of_rounds for one in metrics))
    columns = set[str]().union(*(one.columns for one in metrics))
    size = 8 * (rounds * len(of_rounds) + entries * len(columns))
    if size > LIMIT:
        raise UserError(
            f"results of {size:,} bytes, more than the limit of {LIMIT:,} for a run"
        )


def count_clients(results: Results) -> set[int]:
    """Return the numbers of clients in the arrays: one, or none if unknown."""
    static, clients = results.static, results.values.clients
    counts = {len(static[name]) for name in (*COUNTS, GROUP) if name in static}
    return counts | ({clients} if clients else set())


def _concatenate(parts: Sequence[Metrics]) -> Metrics:
    """Return the joined rounds of several parts."""
    parts = [Metrics(), *parts]  # the empty part keeps the concatenation valid
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    rounds = [len(part.starts) - 1 for part in parts]
    entries = [len(part.ids) for part in parts]
    return Metrics(
        of_rounds=_join_columns([part.of_rounds for part in parts], rounds),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        ids=np.concatenate([part.ids for part in parts]),
        columns=_join_columns([part.columns for part in parts], entries),
        clients=max(part.clients for part in parts),
    )


def _join_columns(
    parts: Sequence[Columns], lengths: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the joined columns of several parts, with missing values for absent
    columns.
    """
    joined = {}
    for name in sorted(set[str]().union(*parts)):
        dtype = np.result_type(*(part[name] for part in parts if name in part))
        columns = []
        for part, length in zip(parts, lengths, strict=True):
            columns.append(part[name] if name in part else make_missing(length, dtype))
        joined[name] = np.concatenate(columns)
    return joined


def make_missing(shape: int | tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Return an array of missing values: NaN, or −1 for integers."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)


def widen(array: np.ndarray) -> np.ndarray:
    """Return whole numbers as int64, in which −1 marks missing values; return other
    arrays unchanged.
    """
    return array.astype(np.int64) if array.dtype.kind in "iub" else array


def read(folder: str | Path, run: str | None = None) -> Results:
    """Return the results in a run's folder, even during a run.

    Args:
        folder: folder of the run.
        run: fingerprint of the run; None for that of the first file.

    Raises:
        UserError: The folder has no results.
        RunFailure: The files of rounds cannot be listed.
    """
    folder = Path(folder)
    for _ in range(ATTEMPTS):
        damaged: dict[Path, str] = {}
        # The files are listed first: every round is then in a listed file or in the
        # merged file.
        paths = list_rounds(folder)
        try:
            parts = load_all(folder, paths, damaged, run)
        except FileNotFoundError:
            # a listed file was merged in the meantime; the merged file has its rounds
            continue
        notes = list(damaged.values())
        if not parts:
            raise UserError("; ".join([f"{folder}: no results here", *notes]))
        return replace(merge(parts), notes=notes)
    raise UserError(f"{folder}: the results keep changing while they are read")


def list_rounds(folder: Path) -> list[Path]:
    """Return the paths of unmerged files of rounds, ascending. Raises RunFailure."""
    return atomic.list_paths(folder / ROUNDS, "*.h5")


def examine(folder: Path, run: str) -> tuple[list[str], list[int]]:
    """Return a line for each file in a folder that another run wrote, and the numbers
    ``Results.completed`` of this run.

    Damaged files and files that vanish in the meantime are ignored.

    Args:
        folder: folder of the run.
        run: fingerprint of the run.

    Raises:
        RunFailure: The files of rounds cannot be listed.
    """
    others, completed = [], set[int]()
    for path in (folder / MERGED, *list_rounds(folder)):
        try:
            found = load(path)
            check_run(found.header.get(RUN), run)
        except AnotherRun as error:
            others.append(f"{path}: {error}")
        except (FileNotFoundError, Damaged):
            continue
        else:
            completed |= find_completed(found)
    return others, sorted(completed)


def load_all(
    folder: Path, paths: list[Path], damaged: dict[Path, str], run: str | None
) -> list[Results]:
    """Return the results in ``metrics.h5``, if it exists, and in files of rounds.

    Args:
        folder: folder of the run.
        paths: files of rounds.
        damaged: dictionary that receives a line for each file that is damaged or
            belongs to another run.
        run: fingerprint of the run; None for that of the first file.

    Raises:
        FileNotFoundError: A file of rounds is missing.
    """
    parts = []
    for path in (folder / MERGED, *paths):
        try:
            part = load(path)
            check_run(part.header.get(RUN), run)
        except FileNotFoundError:
            if path.name != MERGED:
                raise
            continue
        except Damaged as error:
            damaged[path] = f"{path}: damaged and ignored ({error})"
            continue
        run = run or part.header.get(RUN)
        parts.append(part)
    return parts


def encode(results: Results) -> bytes:
    """Return the bytes of a file; attributes of its root group hold the header as JSON."""
    metrics = results.values
    header = {
        **results.header,
        COMPLETED: results.completed,
        CLIENT_COUNT: metrics.clients,
    }
    datasets = {
        "rounds": results.rounds,
        IDS: _shrink(metrics.ids),
        STARTS: _shrink(metrics.starts),
    }
    for name, array in results.static.items():
        datasets[STATIC + name] = _shrink(array)
    for name, array in {**metrics.of_rounds, **metrics.columns}.items():
        datasets[VALUES + name] = array
    attributes = {name: json.dumps(value) for name, value in header.items()}
    return hdf5.seal(KIND, hdf5.encode(datasets, attributes))


def load(path: Path) -> Results:
    """Return the results in a file written by ``encode``.

    Raises FileNotFoundError or Damaged.
    """
    content = hdf5.unseal(KIND, untrusted_files.read_bytes(path, LIMIT))
    datasets, attributes = hdf5.decode(content)
    entries = {name: untrusted_files.parsed(text) for name, text in attributes.items()}
    header: dict[str, Any] = dict(untrusted_files.checked(entries, Header))
    if not {"rounds", IDS, STARTS} <= datasets.keys():
        raise Damaged("not a complete file of results")
    static: dict[str, np.ndarray] = {}
    of_rounds: dict[str, np.ndarray] = {}
    columns: dict[str, np.ndarray] = {}
    for path_inside, array in datasets.items():
        name = path_inside.partition("/")[2]
        if path_inside.startswith(STATIC):
            static[name] = widen(array)
        elif path_inside.startswith(VALUES):
            if MetricName.parse(name).of_clients:
                columns[name] = widen(array)
            else:
                of_rounds[name] = widen(array)
    metrics = Metrics(
        of_rounds=of_rounds,
        starts=widen(datasets[STARTS]),
        ids=widen(datasets[IDS]),
        columns=columns,
        clients=header.pop(CLIENT_COUNT, None),
    )
    completed = header.pop(COMPLETED, [])
    rounds = datasets["rounds"]
    _check_rounds(rounds, of_rounds)
    _check_entries(len(rounds), metrics)
    results = Results(
        header=header,
        static=static,
        rounds=rounds,
        values=metrics,
        completed=completed,
    )
    _check_static(results)
    return results


def _check_rounds(rounds: np.ndarray, of_rounds: Columns) -> None:
    """Raise Damaged unless rounds are ascending int64 [T], and their metrics [T]."""
    # compared without differences, which could overflow
    ascending = rounds.ndim == 1 and (rounds[1:] > rounds[:-1]).all()
    if rounds.dtype != np.int64 or not ascending or (rounds < 0).any():
        raise Damaged("its rounds are not a list of ascending numbers")
    _check_shapes(of_rounds, rounds.shape)


def _check_entries(rounds: int, metrics: Metrics) -> None:
    """Raise Damaged if clients' entries do not fit ``rounds`` rounds.

    ``starts`` ascend from 0 to N. ``ids`` [N] ascend within each round and are below
    ``clients``. Columns are [N].
    """
    ids, starts, clients = metrics.ids, metrics.starts, metrics.clients
    right = (
        ids.dtype == starts.dtype == np.int64
        and ids.ndim == 1
        and starts.shape == (rounds + 1,)
        and starts[0] == 0
        and starts[-1] == len(ids)
        and (starts[1:] >= starts[:-1]).all()
        and isinstance(clients, int)
        and 0 <= clients <= MOST_CLIENTS
        and ids.min(initial=0) >= 0
        and ids.max(initial=-1) < clients
    )
    if not right:
        raise Damaged("its entries of clients do not fit its rounds")
    entry_rounds = metrics.entry_rounds
    same_round = entry_rounds[1:] == entry_rounds[:-1]
    if (same_round & (ids[1:] <= ids[:-1])).any():
        raise Damaged("its clients do not ascend within a round")
    _check_shapes(metrics.columns, ids.shape)


def _check_shapes(arrays: Columns, shape: tuple[int, ...]) -> None:
    """Raise Damaged for an array with another shape."""
    for name, array in arrays.items():
        if array.shape != shape:
            raise Damaged(f"values {name!r} have shape {array.shape}, not {shape}")


def _check_static(results: Results) -> None:
    """Raise Damaged for invalid static arrays.

    COUNTS are [clients, classes], with the number of clients of the clients' metrics.
    """
    static = results.static
    for name, dimensions in ((COUNTS[0], 2), (COUNTS[1], 2), (GROUP, 1)):
        array = static.get(name, np.ones((1,) * dimensions, np.int64))
        right = array.dtype == np.int64 and array.ndim == dimensions
        if not right or array.min(initial=0) < 0:
            raise Damaged(f"{name!r} must hold non-negative integers of clients")
        if name in COUNTS and not array.any():
            raise Damaged(f"{name!r} count no samples")
    if len(count_clients(results)) > 1:
        raise Damaged("its arrays have different numbers of clients")


def _shrink(array: np.ndarray) -> np.ndarray:
    """Return non-negative whole numbers in the smallest integer type; return other
    arrays unchanged.
    """
    if array.dtype.kind not in "iu" or not array.size or array.min() < 0:
        return array
    return array.astype(np.min_scalar_type(array.max()))
