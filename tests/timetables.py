"""Synthetic timetables: clients with given numbers of ticks."""

from dataclasses import dataclass
from typing import Any

from hpcfl.clock import availability
from hpcfl.clock.asynchronous.timetable import AsynchronousTimetable
from hpcfl.clock.clients import Clients
from hpcfl.clock.durations import Devices, Work
from hpcfl.clock.synchronous import SynchronousTimetable
from hpcfl.experiment.sections import Time
from hpcfl.selection.uniform import Uniform
from hpcfl.simulation.round_schedule import Draws


@dataclass
class Fixed:
    """A ``Duration`` with a given number of ticks for each client and epoch."""

    ticks_of: list[int]
    epochs: int = 1

    @property
    def devices(self) -> Devices:
        return Devices(self.ticks_of, self.ticks_of, self.ticks_of, 0)

    @property
    def work(self) -> Work:
        return Work(1, self.epochs, 0, 0)

    def count_ticks(self, client: int, epochs: int) -> int:
        return self.ticks_of[client] * epochs

    def count_epochs_within(self, client: int, ticks: int) -> int:
        return min(self.epochs, ticks // self.ticks_of[client])


def list_clients(
    mode: str,
    ticks: list[int],
    *,
    epochs: int = 1,
    when=None,
    participation: dict[str, Any] | None = None,
    **keys,
) -> Clients:
    """Return the clients of a timetable with the given numbers of ticks."""
    time, clients = Time(mode=mode, **keys), len(ticks)
    draws = Draws(Uniform(**participation or {}), clients, 2)
    if when is None:
        when = availability.make_availability(time, clients, 2)
    return Clients(time, draws, Fixed(ticks, epochs), when)


def synchronous(ticks: list[int], **keys) -> SynchronousTimetable:
    return SynchronousTimetable(list_clients("synchronous", ticks, **keys))


def asynchronous(ticks: list[int], **keys) -> AsynchronousTimetable:
    return AsynchronousTimetable(list_clients("asynchronous", ticks, **keys))
