"""Checks of a file of results before any computation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import RootModel

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.client_numbers import ClientNumbers, Values
from hpcfl.storage.forms import Header

# bytes of all results of a run: 2,000 rounds of 25,000 clients with 10 numbers each
LIMIT = 4 << 30
COUNTS = (
    "train_counts",
    "test_counts",
)  # static arrays: the partition's samples, [clients, classes]
GROUP = "group"  # a static array: the group of each client, [clients]

MOST_CLIENTS = 10**9

Arrays = Mapping[str, np.ndarray]


class Alike(RootModel[list[list[str]]]):
    """The names of the values in each packed dataset."""


def header(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the header from each entry's JSON text.

    Raises Damaged if it does not fit ``forms.Header``.
    """
    return dict(
        untrusted_files.checked(
            {name: untrusted_files.parsed(text) for name, text in attributes.items()},
            Header,
        )
    )


def unpacked(datasets: Arrays, names: str, packed: str) -> dict[str, np.ndarray]:
    """Return all datasets by name, and the values that ``packed/0``, ``packed/1`` …
    hold.

    names: a JSON text, the names of the values in each of these. Raises KeyError,
    ValueError, Damaged.
    """
    result = dict(datasets)
    for i, alike in enumerate(
        untrusted_files.checked(untrusted_files.parsed(names), Alike).root
    ):
        together = datasets[f"{packed}/{i}"]
        if together.ndim < 1:
            raise Damaged("a number where several belong")
        result |= dict(zip(alike, together, strict=True))
    return result


def long(array: np.ndarray) -> np.ndarray:
    """Return whole numbers as int64, in which -1 marks missing ones, and others
    unchanged.
    """
    return array.astype(np.int64) if array.dtype.kind in "iub" else array


def entries(
    rounds: int,
    ids: np.ndarray | None,
    starts: np.ndarray | None,
    columns: dict[str, np.ndarray],
    clients: Any,
) -> ClientNumbers:
    """Return the per-client metrics of so many rounds from arrays of a file.

    ``starts`` [rounds + 1] ascend from 0 to N. ``ids`` [N] ascend within each round and
    are below ``clients``. The columns are [N]. Raises Damaged for other arrays.
    """
    if ids is None or starts is None:
        raise Damaged("written in another format by another version of hpcfl")
    ids, starts = long(ids), long(starts)
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
        raise Damaged("its entries are not those of clients in rounds")
    numbers = ClientNumbers(starts, ids, columns, clients)
    same_round = numbers.rounds[1:] == numbers.rounds[:-1]
    if (same_round & (ids[1:] <= ids[:-1])).any():
        raise Damaged("its clients are not in their order")
    for name, column in columns.items():
        if column.shape != ids.shape:
            raise Damaged(
                f"values {name!r} have shape {column.shape}, there are {len(ids)} entries"
            )
    return numbers


def check(
    rounds: np.ndarray, static: Arrays, values: Arrays, clients: ClientNumbers
) -> None:
    """Raise Damaged for invalid rounds, static arrays or values.

    Rounds are ascending int64 [T] and values are [T]. COUNTS are [clients, classes],
    with as many clients as the per-client metrics.
    """
    ascending = (
        rounds.ndim == 1 and (rounds[1:] > rounds[:-1]).all()
    )  # differences could overflow
    if rounds.dtype != np.int64 or not ascending or (rounds < 0).any():
        raise Damaged("its rounds are not a list of ascending numbers")
    for name, array in values.items():
        if array.shape != rounds.shape:
            raise Damaged(
                f"values {name!r} have shape {array.shape}, there are {len(rounds)} rounds"
            )
    for name in COUNTS:
        counts = static.get(name, np.ones((1, 1), np.int64))
        if (
            counts.dtype != np.int64
            or counts.ndim != 2
            or counts.min(initial=0) < 0
            or not counts.any()
        ):
            raise Damaged(f"{name!r} are not counts of clients × classes")
    group = static.get(GROUP, np.zeros(1, np.int64))
    if group.dtype != np.int64 or group.ndim != 1 or group.min(initial=0) < 0:
        raise Damaged(f"{GROUP!r} are not the groups of clients")
    if len(_clients(static, clients)) > 1:
        raise Damaged("its arrays are of different numbers of clients")


def check_together(length: int, parts: Sequence[tuple[Arrays, Values]]) -> None:
    """Raise UserError unless several files can belong to one run of ``length`` rounds.

    parts: the static arrays and the values of each file, after ``check``.
    """
    counts: set[int] = set()
    of_rounds: set[str] = set()
    of_clients: set[str] = set()
    entries = 0
    for static, values in parts:
        counts |= _clients(static, values.clients)
        of_rounds |= values.of_rounds.keys()
        of_clients |= values.clients.columns.keys()
        entries += len(values.clients.ids)
    clients = sorted(counts)
    if len(clients) > 1:
        raise UserError(
            f"results that are not of one run: one file is of {clients[0]} clients, another of "
            f"{clients[1]}"
        )
    size = 8 * (length * len(of_rounds) + entries * len(of_clients))
    if size > LIMIT:
        raise UserError(
            f"results of {size:,} bytes, more than the {LIMIT:,} that a run may have"
        )


def _clients(static: Arrays, numbers: ClientNumbers) -> set[int]:
    """Return the numbers of clients that the arrays have: one, or none if unknown."""
    counts = {len(static[name]) for name in (*COUNTS, GROUP) if name in static}
    return counts | ({numbers.clients} if numbers.clients else set())
