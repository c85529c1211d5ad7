"""Sparse per-client metrics by round.

A round with a hundred of a million clients has a hundred entries, in memory and in a
file. Arrays [T, clients] are made on request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from hpcfl.errors import UserError
from hpcfl.scores.metric_names import MetricName

Positions = Sequence[int] | np.ndarray
MOST = 4 << 30  # bytes of an array [T, clients]


@dataclass(frozen=True)
class OfSome:
    """A metric of some of a run's clients in one round.

    NumPy converts it to an array of all clients.

    Attributes:
        ids: The n clients, int64 [n], ascending.
        numbers: Their metric, [n].
        clients: The number of clients of the run.
    """

    ids: np.ndarray
    numbers: np.ndarray
    clients: int
    ndim: ClassVar[int] = 1

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """Return the metric of all clients, [clients], with the missing value for the
        others.
        """
        of_all = missing(self.clients, self.numbers.dtype)
        of_all[self.ids] = self.numbers
        return of_all if dtype is None else of_all.astype(dtype)


@dataclass(frozen=True)
class ClientNumbers:
    """Metrics of clients in T rounds: N entries, sorted by round and then by client.

    Attributes:
        starts: The entries of round t are those from ``starts[t]`` to ``starts[t +
            1]``, int64 [T + 1].
        ids: The client of each entry, int64 [N].
        columns: The metrics by name [N]; missing ones are NaN (floats) or −1
            (integers).
        clients: The number of clients of the run; 0 if no client has a metric.
    """

    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    clients: int = 0

    @property
    def rounds(self) -> np.ndarray:
        """Return the position of each entry's round, int64 [N]."""
        lengths = np.diff(self.starts)
        return np.repeat(np.arange(len(lengths)), lengths)

    def series(self, name: str) -> np.ndarray:
        """Return a metric of all clients in all rounds, [T, clients]."""
        rounds = len(self.starts) - 1
        size = 8 * rounds * self.clients
        if size > MOST:
            raise UserError(
                f"'{name}' of {self.clients:,} clients in {rounds:,} rounds "
                f"would be {size:,} bytes, more than {MOST:,}"
            )
        column = self.columns[name]
        series = missing((rounds, self.clients), column.dtype)
        series[self.rounds, self.ids] = column
        return series

    def select_rounds(self, positions: Positions) -> "ClientNumbers":
        """Return the entries of the rounds at some positions, in their order."""
        chosen = np.asarray(positions, np.int64)
        lengths = np.diff(self.starts)[chosen]
        starts = _starts(lengths)
        # An entry moves as far as its whole round.
        shifts = self.starts[chosen] - starts[:-1]
        entries = np.arange(starts[-1]) + np.repeat(shifts, lengths)
        columns = self._columns_at(entries)
        return ClientNumbers(starts, self.ids[entries], columns, self.clients)

    def only(self, ids: np.ndarray) -> "ClientNumbers":
        """Return the entries of some clients, int64 [n] ascending, renumbered 0 to n −
        1.
        """
        entries = np.flatnonzero(np.isin(self.ids, ids))
        rounds = len(self.starts) - 1
        lengths = np.bincount(self.rounds[entries], minlength=rounds)
        new_ids = np.searchsorted(ids, self.ids[entries])
        columns = self._columns_at(entries)
        return ClientNumbers(_starts(lengths), new_ids, columns, len(ids))

    def _columns_at(self, entries: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns at some entries, int64 [n]."""
        return {name: column[entries] for name, column in self.columns.items()}


def of_round(values: Mapping[str, OfSome]) -> ClientNumbers:
    """Return one round of the clients' metrics by name."""
    if not values:
        return ClientNumbers(np.zeros(2, np.int64))
    clients = max(some.clients for some in values.values())
    # Most metrics share one set of clients, whose ids need no sorting.
    audiences = {id(some.ids): some.ids for some in values.values()}
    ids, *others = audiences.values()
    if others:
        ids = np.unique(np.concatenate([ids, *others]))
    columns = {}
    for name, some in values.items():
        rows = np.searchsorted(ids, some.ids)
        columns[name] = missing(len(ids), some.numbers.dtype)
        columns[name][rows] = some.numbers
    return ClientNumbers(np.array([0, len(ids)]), ids, columns, clients)


def of_series(series: Mapping[str, np.ndarray], rounds: int) -> ClientNumbers:
    """Return the sparse form of arrays [T, clients] by name, with T ``rounds``."""
    if not series:
        return ClientNumbers(np.zeros(rounds + 1, np.int64))
    clients = max(array.shape[1] for array in series.values())
    recorded = np.zeros((rounds, clients), bool)
    for array in series.values():
        if array.dtype.kind == "f":
            recorded |= ~np.isnan(array)
        else:
            recorded |= array != -1
    starts = _starts(recorded.sum(axis=1))
    ids = recorded.nonzero()[1]
    columns = {name: array[recorded] for name, array in series.items()}
    return ClientNumbers(starts, ids, columns, clients)


def joined(
    parts: Sequence[tuple[ClientNumbers, Sequence[int], Sequence[int]]], rounds: int
) -> ClientNumbers:
    """Return T ``rounds`` joined from several parts.

    parts: the metrics of each, the positions of the rounds to take, and the positions
    of these rounds among the T.
    """
    # The empty piece keeps the concatenation valid without parts.
    pieces = [ClientNumbers()]
    new_rounds = [pieces[0].rounds]  # of each piece's entries
    for numbers, positions, new_positions in parts:
        piece = numbers.select_rounds(positions)
        pieces.append(piece)
        new_rounds.append(np.asarray(new_positions, np.int64)[piece.rounds])
    of_entries = np.concatenate(new_rounds)
    order = np.argsort(of_entries, kind="stable")
    starts = _starts(np.bincount(of_entries, minlength=rounds))
    ids = np.concatenate([piece.ids for piece in pieces])
    clients = max(piece.clients for piece in pieces)
    names = sorted(set().union(*(piece.columns for piece in pieces)))
    columns = {name: _concatenated(pieces, name)[order] for name in names}
    return ClientNumbers(starts, ids[order], columns, clients)


def _concatenated(pieces: Sequence[ClientNumbers], name: str) -> np.ndarray:
    """Return a column of several pieces, with missing values for pieces without it."""
    known = [piece.columns[name] for piece in pieces if name in piece.columns]
    dtype = np.result_type(*known)
    columns = []
    for piece in pieces:
        nothing = missing(len(piece.ids), dtype)
        columns.append(piece.columns.get(name, nothing))
    return np.concatenate(columns)


class Values(Mapping[str, np.ndarray]):
    """Recorded metrics by name: [T] of a round, and [T, clients] of clients, made on
    request.
    """

    def __init__(self, of_rounds: Mapping[str, np.ndarray], clients: ClientNumbers):
        self.of_rounds = dict(of_rounds)
        self.clients = clients

    @classmethod
    def from_arrays(cls, values: Mapping[str, np.ndarray], rounds: int) -> "Values":
        """Return the same values as arrays by name, with T ``rounds``."""
        if isinstance(values, Values):
            return values
        of_rounds: dict[str, np.ndarray] = {}
        of_clients: dict[str, np.ndarray] = {}
        for name, array in values.items():
            if MetricName.parse(name).of_clients:
                of_clients[name] = array
            else:
                of_rounds[name] = array
        return cls(of_rounds, of_series(of_clients, rounds))

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.clients.columns:
            return self.clients.series(name)
        return self.of_rounds[name]

    def __contains__(self, name: object) -> bool:
        return name in self.of_rounds or name in self.clients.columns

    def __iter__(self) -> Iterator[str]:
        yield from self.of_rounds
        yield from self.clients.columns

    def __len__(self) -> int:
        return len(self.of_rounds) + len(self.clients.columns)

    def select_rounds(self, positions: Positions) -> "Values":
        """Return the values of the rounds at some positions, in their order."""
        chosen = np.asarray(positions, np.int64)
        of_rounds = {name: array[chosen] for name, array in self.of_rounds.items()}
        return Values(of_rounds, self.clients.select_rounds(positions))


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Return the first entry of each of T rounds and the end of the last, int64 [T +
    1].

    lengths: the number of entries of each round.
    """
    return np.concatenate([[0], np.cumsum(lengths)])


def missing(shape: int | tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Return an array of missing values: NaN, or −1 for integers."""
    nothing = np.nan if dtype.kind == "f" else -1
    return np.full(shape, nothing, dtype)
