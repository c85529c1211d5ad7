"""What a file of results must hold, checked before anything is computed from it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import RootModel

from hpcfl.errors import UserError
from hpcfl.files import foreign
from hpcfl.files.atomic import Damaged
from hpcfl.scores._metric_name import MetricName
from hpcfl.storage.forms import Header

LIMIT = (
    4 << 30
)  # bytes of all results of a run: 2,000 rounds of 25,000 clients with 10 numbers each
COUNTS = (
    "train_counts",
    "test_counts",
)  # static arrays: samples of the partition, [clients, classes]
GROUP = "group"  # a static array: the group of each client, [clients]

Arrays = Mapping[str, np.ndarray]


class Alike(RootModel[list[list[str]]]):
    """For each packed dataset the names of the values in it."""


def header(attributes: Mapping[str, str]) -> dict[str, Any]:
    """The header from the JSON text of each entry. Raises Damaged where it does not fit
    ``forms.Header``.
    """
    return dict(
        foreign.checked(
            {name: foreign.parsed(text) for name, text in attributes.items()}, Header
        )
    )


def unpacked(datasets: Arrays, names: str, packed: str) -> dict[str, np.ndarray]:
    """All datasets by name, and the values that ``packed/0``, ``packed/1`` … hold.

    names: a JSON text, the names of the values in each of these. Raises KeyError,
    ValueError, Damaged.
    """
    result = dict(datasets)
    for i, alike in enumerate(foreign.checked(foreign.parsed(names), Alike).root):
        together = datasets[f"{packed}/{i}"]
        if together.ndim < 1:
            raise Damaged("a number where several belong")
        result |= dict(zip(alike, together, strict=True))
    return result


def check(rounds: np.ndarray, static: Arrays, values: Arrays) -> None:
    """Raises Damaged unless rounds are int64 [T], ascending, values [T] or, of clients,
    [T, clients], and COUNTS [clients, classes], of as many clients in all of them.
    """
    ascending = (
        rounds.ndim == 1 and (rounds[1:] > rounds[:-1]).all()
    )  # not by differences, which overflow
    if rounds.dtype != np.int64 or not ascending or (rounds < 0).any():
        raise Damaged("its rounds are not a list of ascending numbers")
    for name, array in values.items():
        dimensions = 2 if MetricName.parse(name).of_clients else 1
        if array.shape[:1] != rounds.shape or array.ndim != dimensions:
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
    if len(_clients(static, values)) > 1:
        raise Damaged("its arrays are of different numbers of clients")


def check_together(length: int, parts: Sequence[tuple[Arrays, Arrays]]) -> None:
    """Raises UserError unless several files can be of one run of ``length`` rounds.

    parts: of each file the static arrays and the values, which ``check`` has seen.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for _, values in parts:
        for name, array in values.items():
            shapes.setdefault(name, array.shape[1:])
    clients = sorted({count for part in parts for count in _clients(*part)})
    if len(clients) > 1:
        raise UserError(
            f"results that are not of one run: one file is of {clients[0]} clients, another of "
            f"{clients[1]}"
        )
    if (size := 8 * length * sum(map(math.prod, shapes.values()))) > LIMIT:
        raise UserError(
            f"results of {size:,} bytes, more than the {LIMIT:,} that a run may have"
        )


def _clients(static: Arrays, values: Arrays) -> set[int]:
    """The numbers of clients that arrays are of; one, or none where none says."""
    counts = {len(static[name]) for name in (*COUNTS, GROUP) if name in static}
    for name, array in values.items():
        if MetricName.parse(name).of_clients:
            counts.add(array.shape[1])
    return counts
