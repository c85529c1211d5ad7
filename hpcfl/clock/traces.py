"""Files of measured devices and their availability, in the form of FedScale's traces.

FedScale's own files are pickles, which are not read because unpickling runs code. The
files here are ``json.dump`` of their content: ``{"0": {"computation": 120.5,
"communication": 9000.0}, …}`` and ``{"0": {"active": [0, 7200], "inactive": [3600,
9000], "finish_time": 86400}, …}``.

``computation`` is the time of inference, as in FedScale's files; its simulator counts
training as 3 times that. A file of measured training times has ``training`` instead.
"""

from decimal import Decimal
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged

MOST_BYTES = 1 << 28
MOST_SECONDS = 10**9  # in a file of availability
# The factor from a row's milliseconds, by key, to those of training on a sample.
TIMES = {"computation": 3, "training": 1}


def capacities(path: str) -> list[tuple[Decimal, Decimal]]:
    """Read the devices in a file: milliseconds to train on a sample, and kbit/s.

    Raises UserError.
    """
    devices = []
    for name, row in _rows(path):
        milliseconds = _training_time(path, name, row)
        kilobits = _positive(path, name, row, "communication")
        devices.append((milliseconds, kilobits))
    return devices


def _training_time(path: str, name: str, row: dict[str, Any]) -> Decimal:
    """Return a device's milliseconds to train on a sample. Raises UserError."""
    given = [key for key in TIMES if key in row]
    if len(given) != 1:
        raise UserError(
            f"{path}: client '{name}' must have either 'computation', milliseconds of "
            "inference, or 'training', milliseconds of training"
        )
    [key] = given
    return TIMES[key] * _positive(path, name, row, key)


def activities(path: str, ticks: int) -> list[tuple[list[tuple[int, int]], int]]:
    """Read the periods in which each client of a file is on, and the length of its
    time.

    Periods are [from, to) in ticks; the file repeats after its length. ticks: in a
    second. Raises UserError.
    """
    found = []
    for name, row in _rows(path):
        end = int(_positive(path, name, row, "finish_time") * ticks)
        begins = _times(path, name, row, "active", ticks)
        ends = _times(path, name, row, "inactive", ticks)
        if begins and len(ends) == len(begins) - 1:
            ends.append(end)  # the client is on when the file's time ends
        if len(begins) != len(ends):
            raise UserError(
                f"{path}: client '{name}' has {len(begins)} times in 'active' and "
                f"{len(ends)} in 'inactive'; each 'active' needs an 'inactive' after it"
            )
        periods = list(zip(begins, ends, strict=True))
        _refuse_disorder(path, name, periods, end)
        found.append((periods, end))
    return found


def note_order(path: str, clients: list[str]) -> list[str]:
    """Return a note for a file that has names of clients in another order.

    clients: the names of the clients in the data, in the order of their ids.
    """
    names = [name for name, _ in _rows(path)]
    if not set(names) & set(clients) or names[: len(clients)] == clients:
        return []
    return [
        f"{path}: clients take its rows in turn, whatever their names; row '{names[0]}' is "
        f"for client '{clients[0]}'; sort its rows as the data sort their clients"
    ]


def _refuse_disorder(
    path: str, name: str, periods: list[tuple[int, int]], end: int
) -> None:
    """Raise UserError for the first period that is not between the one before and
    ``end``.
    """
    last = -1
    for number, (comes_on, goes_off) in enumerate(periods):
        if not last < comes_on < goes_off <= end:
            raise UserError(
                f"{path}: client '{name}': 'active' and 'inactive' must be ascending "
                f"seconds in turn, up to 'finish_time'; number {number} of each is not"
            )
        last = goes_off


def _rows(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a file by name, in its order. Raises UserError."""
    file = Path(path).expanduser()
    try:
        table = untrusted_files.parsed(untrusted_files.read_user_file(file, MOST_BYTES))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None
    except Damaged as error:
        raise UserError(
            f"{path}: is not JSON ({error}); of a pickle write what it holds by json.dump"
        ) from None
    if isinstance(table, list):
        table = {str(position): row for position, row in enumerate(table)}
    if not isinstance(table, dict) or not table:
        raise UserError(f"{path}: must hold a row for each client, by its name")
    for name, row in table.items():
        if not isinstance(row, dict):
            raise UserError(f"{path}: client '{name}' must be a table, not {row!r:.60}")
    return list(table.items())


def _positive(path: str, name: str, row: dict[str, Any], key: str) -> Decimal:
    """Return a number above 0 in a client's row. Raises UserError."""
    number = row.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UserError(f"{path}: client '{name}' must have a number as '{key}'")
    if not 0 < number <= MOST_SECONDS:
        raise UserError(
            f"{path}: '{key}' of client '{name}' is {number}; above 0 and at most "
            f"{MOST_SECONDS}"
        )
    return Decimal(number)


def _times(
    path: str,
    name: str,
    row: dict[str, Any],
    key: str,
    ticks: int,
) -> list[int]:
    """Return a list of seconds in a client's row, in ticks. Raises UserError."""
    numbers = row.get(key)
    if not isinstance(numbers, list):
        raise UserError(
            f"{path}: client '{name}' must have a list of seconds as '{key}'"
        )
    for position, number in enumerate(numbers):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 <= number <= MOST_SECONDS:
            raise UserError(
                f"{path}: '{key}' of client '{name}' has {number!r:.60} at position "
                f"{position}; it must be seconds from 0 to {MOST_SECONDS}"
            )
    return [int(Decimal(number) * ticks) for number in numbers]
