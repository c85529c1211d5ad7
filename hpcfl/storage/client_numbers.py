"""Numbers of clients, round by round: of those alone that have any.

A round of a hundred out of a million clients is a hundred entries, in memory as in a
file. Arrays [T, clients] are made for who asks for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import DTypeLike

from hpcfl.errors import UserError
from hpcfl.scores._metric_name import MetricName

Positions = Sequence[int] | np.ndarray
MOST = 4 << 30  # bytes of an array [T, clients]


@dataclass(frozen=True)
class OfSome:
    """A number of some of a run's clients, in one round. NumPy takes it for an array of
    all clients.

    Attributes:
        ids: Of the n clients, int64 [n], ascending.
        numbers: Theirs, [n].
        clients: How many clients the run has.
    """

    ids: np.ndarray
    numbers: np.ndarray
    clients: int
    ndim: ClassVar[int] = 1

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """Of all clients, [clients], with what says "missing" where there is none."""
        whole = missing(self.clients, self.numbers.dtype)
        whole[self.ids] = self.numbers
        return whole if dtype is None else whole.astype(dtype)


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of clients in T rounds, N entries, sorted by round and then by client.

    Attributes:
        starts: The entries of round t are those from ``starts[t]`` to
            ``starts[t + 1]``, int64 [T + 1].
        ids: The client of each entry, int64 [N].
        columns: By name [N], NaN (floats) or −1 (integers) where it is missing.
        clients: How many clients the run has; 0 where nothing was recorded of any.
    """

    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    clients: int = 0

    @property
    def rounds(self) -> np.ndarray:
        """The position of each entry's round, int64 [N]."""
        lengths = np.diff(self.starts)
        return np.repeat(np.arange(len(lengths)), lengths)

    def series(self, name: str) -> np.ndarray:
        """A number of all clients in all rounds, [T, clients]."""
        column = self.columns[name]
        rounds = len(self.starts) - 1
        size = 8 * rounds * self.clients
        if size > MOST:
            raise UserError(
                f"'{name}' of {self.clients:,} clients in {rounds:,} rounds "
                f"would be {size:,} bytes, more than {MOST:,}"
            )
        whole = missing((rounds, self.clients), column.dtype)
        whole[self.rounds, self.ids] = column
        return whole

    def at(self, positions: Positions) -> "ClientNumbers":
        """The entries of the rounds at some positions, in their order."""
        chosen = np.asarray(positions, np.int64)
        lengths = np.diff(self.starts)[chosen]
        starts = _starts(lengths)
        # of each entry its distance from the beginning of its round
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        entries = np.repeat(self.starts[chosen], lengths) + within
        columns = {name: column[entries] for name, column in self.columns.items()}
        return ClientNumbers(starts, self.ids[entries], columns, self.clients)

    def only(self, ids: np.ndarray) -> "ClientNumbers":
        """The entries of some clients, int64 [n] ascending, who are called 0 to n − 1."""
        kept = np.isin(self.ids, ids)
        lengths = np.bincount(self.rounds[kept], minlength=len(self.starts) - 1)
        columns = {name: column[kept] for name, column in self.columns.items()}
        called = np.searchsorted(ids, self.ids[kept])
        return ClientNumbers(_starts(lengths), called, columns, len(ids))


def of_round(values: Mapping[str, OfSome]) -> ClientNumbers:
    """What was recorded of clients in one round, by name."""
    if not values:
        return ClientNumbers(np.zeros(2, np.int64))
    clients = max(one.clients for one in values.values())
    kinds = list(values.values())
    ids = kinds[0].ids
    if any(one.ids is not ids for one in kinds[1:]):
        ids = np.unique(np.concatenate([one.ids for one in kinds]))
    columns = {}
    for name, one in values.items():
        column = missing(len(ids), one.numbers.dtype)
        column[np.searchsorted(ids, one.ids)] = one.numbers
        columns[name] = column
    return ClientNumbers(np.array([0, len(ids)]), ids, columns, clients)


def of_series(series: Mapping[str, np.ndarray], rounds: int) -> ClientNumbers:
    """The same numbers as in arrays [T, clients] by name, with T ``rounds``."""
    if not series:
        return ClientNumbers(np.zeros(rounds + 1, np.int64))
    clients = max(array.shape[1] for array in series.values())
    known = np.zeros((rounds, clients), bool)
    for array in series.values():
        known |= ~np.isnan(array) if array.dtype.kind == "f" else array != -1
    starts = _starts(known.sum(axis=1))
    columns = {name: array[known] for name, array in series.items()}
    return ClientNumbers(starts, known.nonzero()[1], columns, clients)


def joined(
    parts: Sequence[tuple[ClientNumbers, Sequence[int], Sequence[int]]], rounds: int
) -> ClientNumbers:
    """One of T ``rounds`` from several.

    parts: of each its numbers, the positions of the rounds that are taken from it, and
        where these come to lie among the T.
    """
    taken: list[ClientNumbers] = []
    # the client of each entry, and the round that it comes to lie in, part by part
    ids = [np.zeros(0, np.int64)]
    places = [np.zeros(0, np.int64)]
    for part, rows, place_of_row in parts:
        some = part.at(rows)
        taken.append(some)
        ids.append(some.ids)
        places.append(np.asarray(place_of_row, np.int64)[some.rounds])
    place = np.concatenate(places)
    order = np.argsort(place, kind="stable")
    columns = {}
    for name in sorted({name for some in taken for name in some.columns}):
        known = [some.columns[name] for some in taken if name in some.columns]
        dtype = np.result_type(*known)
        pieces = []
        for some in taken:
            nothing = missing(len(some.ids), dtype)
            pieces.append(some.columns.get(name, nothing))
        columns[name] = np.concatenate(pieces)[order]
    starts = _starts(np.bincount(place, minlength=rounds))
    clients = max((some.clients for some in taken), default=0)
    return ClientNumbers(starts, np.concatenate(ids)[order], columns, clients)


class Values(Mapping[str, np.ndarray]):
    """Recorded numbers by name: [T] of a round, and [T, clients] of clients, which are
    made when they are asked for.
    """

    def __init__(self, of_rounds: Mapping[str, np.ndarray], clients: ClientNumbers):
        self.of_rounds = dict(of_rounds)
        self.clients = clients

    @classmethod
    def of(cls, values: Mapping[str, np.ndarray], rounds: int) -> "Values":
        """The same values as in arrays by name, with T ``rounds``."""
        if isinstance(values, Values):
            return values
        of_rounds: dict[str, np.ndarray] = {}
        of_clients: dict[str, np.ndarray] = {}
        for name, array in values.items():
            kind = of_clients if MetricName.parse(name).of_clients else of_rounds
            kind[name] = array
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

    def at(self, positions: Positions) -> "Values":
        """The values of the rounds at some positions, in their order."""
        rows = np.asarray(positions, np.int64)
        of_rounds = {name: array[rows] for name, array in self.of_rounds.items()}
        return Values(of_rounds, self.clients.at(positions))


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Where each of T rounds begins, and the last one ends, by how many entries each
    has, int64 [T + 1].
    """
    return np.concatenate([[0], np.cumsum(lengths)])


def missing(shape: int | tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """An array of what says that a number is missing."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)
