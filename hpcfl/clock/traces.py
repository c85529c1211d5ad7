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
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files
from hpcfl.files.atomic import Damaged

MOST_BYTES = 1 << 28
MOST_SECONDS = 10**9  # in a file of availability
INFERENCE = 3  # how many times longer than inference training takes, in FedScale
Positive = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
Seconds = list[Annotated[float, Field(ge=0, le=MOST_SECONDS)]]
Row = TypeVar("Row")


class Device(TypedDict):
    """A row of a file of devices, with either of the first two."""

    computation: NotRequired[Positive]
    training: NotRequired[Positive]
    communication: Positive


class Activity(TypedDict):
    """A row of a file of availability."""

    active: Seconds
    inactive: Seconds
    finish_time: Positive


def read_capacities(path: str) -> list[tuple[Decimal, Decimal]]:
    """Read the devices in a file: milliseconds to train on a sample, and kbit/s.

    Raises UserError.
    """
    devices = []
    for name, row in _read_rows(path, Device):
        measured = [(INFERENCE, row.get("computation")), (1, row.get("training"))]
        times = [factor * Decimal(time) for factor, time in measured if time]
        if len(times) != 1:
            raise UserError(
                f"{path}: client '{name}' must have either 'computation', milliseconds "
                "of inference, or 'training', milliseconds of training"
            )
        devices.append((times[0], Decimal(row["communication"])))
    return devices


def read_activities(path: str, ticks: int) -> list[tuple[list[tuple[int, int]], int]]:
    """Read the periods in which each client of a file is on, and the length of its
    time.

    Periods are [from, to) in ticks; the file repeats after its length. ticks: in a
    second. Raises UserError.
    """
    found = []
    for name, row in _read_rows(path, Activity):
        end = int(Decimal(row["finish_time"]) * ticks)
        begins = [int(Decimal(second) * ticks) for second in row["active"]]
        ends = [int(Decimal(second) * ticks) for second in row["inactive"]]
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
    names = [name for name, _ in _read_rows(path, Any)]
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


def _read_rows(path: str, form: type[Row]) -> list[tuple[str, Row]]:
    """Return the rows of a file by name, in its order. Raises UserError."""
    with untrusted_files.refuse_unreadable(path, "clients' rows in JSON, not a pickle"):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        table = untrusted_files.parsed(content)
        if isinstance(table, list):
            table = {str(position): row for position, row in enumerate(table)}
        if not table:
            raise Damaged("it must hold a row for each client, by its name")
        rows = untrusted_files.checked(table, dict[str, form])  # type: ignore[valid-type]
    return list(rows.items())
