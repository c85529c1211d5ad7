"""Files of measured devices and their availability, in the format of FedScale's traces.

FedScale's own files are pickles, which are not read because unpickling executes code.
The files here hold their content as written by ``json.dump``: ``{"0": {"computation":
120.5, "communication": 9000.0}, …}`` and ``{"0": {"active": [0, 7200], "inactive":
[3600, 9000], "finish_time": 86400}, …}``.

``computation`` is the time of inference, as in FedScale's files; its simulator counts
training as 3 times that. Files of measured training times have ``training`` instead.
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
MOST_SECONDS = 10**9  # limit for times in a file
INFERENCE = 3  # ratio of training time to inference time in FedScale
Positive = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
Seconds = list[Annotated[float, Field(ge=0, le=MOST_SECONDS)]]
Row = TypeVar("Row")


class Device(TypedDict):
    """Row of a file of devices, with either ``computation`` or ``training``."""

    computation: NotRequired[Positive]
    training: NotRequired[Positive]
    # at least 1 bit/s, the unit of bandwidths
    communication: Annotated[float, Field(ge=0.001, le=MOST_SECONDS)]


class Activity(TypedDict):
    """Row of a file of availability."""

    active: Seconds
    inactive: Seconds
    finish_time: Positive


def read_capacities(path: str) -> list[tuple[Decimal, Decimal]]:
    """Return the devices in a file: milliseconds to train on a sample, and kbit/s.

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
    """Return the online periods of each client in a file, and the length of its time.

    Periods are [from, to) in ticks. The file repeats after its length.

    Args:
        path: the file.
        ticks: ticks per second.

    Raises:
        UserError: The file cannot be read or is inconsistent.
    """
    found = []
    for name, row in _read_rows(path, Activity):
        end = int(Decimal(row["finish_time"]) * ticks)
        begins = [int(Decimal(second) * ticks) for second in row["active"]]
        ends = [int(Decimal(second) * ticks) for second in row["inactive"]]
        if begins and len(ends) == len(begins) - 1:
            ends.append(end)  # the client is online at the end of the file's time
        if len(begins) != len(ends):
            raise UserError(
                f"{path}: client '{name}' has {len(begins)} times in 'active' and "
                f"{len(ends)} in 'inactive'; each 'active' needs an 'inactive' after it"
            )
        periods = list(zip(begins, ends, strict=True))
        _refuse_disorder(path, name, periods, end)
        found.append((periods, end))
    return found


def note_rows(path: str, count: int, clients: list[str]) -> list[str]:
    """Return notes if a file has too few rows, or names the data's clients in another
    order.

    Args:
        path: the file.
        count: number of clients.
        clients: names of the clients and newcomers in the data, by id.
    """
    names = [name for name, _ in _read_rows(path, Any)]
    clients = clients[:count]  # newcomers have no devices
    notes = []
    if len(names) < count:
        notes.append(f"{path}: {count:,} clients share its {len(names):,} rows in turn")
    shares_names = bool(set(names) & set(clients))
    if shares_names and names[: len(clients)] != clients:
        notes.append(
            f"{path}: rows are assigned to clients by position, not by name: row '{names[0]}' to "
            f"client '{clients[0]}'; sort its rows in the order of the data's clients"
        )
    return notes


def _refuse_disorder(
    path: str, name: str, periods: list[tuple[int, int]], end: int
) -> None:
    """Raise UserError for the first period that overlaps the previous one or exceeds
    ``end``.
    """
    last = -1
    for number, (comes_on, goes_off) in enumerate(periods):
        if not last < comes_on < goes_off <= end:
            raise UserError(
                f"{path}: client '{name}': 'active' and 'inactive' must alternate and "
                f"ascend, up to 'finish_time'; entry {number} does not"
            )
        last = goes_off


def _read_rows(path: str, form: type[Row]) -> list[tuple[str, Row]]:
    """Return the rows of a file by name, in the order of the file. Raises UserError."""
    with untrusted_files.refuse_unreadable(path, "clients' rows in JSON, not a pickle"):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        table = untrusted_files.parsed(content)
        if isinstance(table, list):
            table = {str(position): row for position, row in enumerate(table)}
        if not table:
            raise Damaged("it must hold a row for each client, by its name")
        rows = untrusted_files.checked(table, dict[str, form])  # type: ignore[valid-type]
    return list(rows.items())
