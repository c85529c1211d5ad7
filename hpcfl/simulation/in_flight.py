"""State of a rank between the rounds of an asynchronous server (time.md §6).

Clients start from older models of the server. Messages are retained while any client
still trains on them. Rank 0 stores them in the server's state, so that checkpoints
contain them. Every rank has them as an inbox.

A client's update depends only on the message, its private state and keys, which are
known when it starts. Hence a rank trains all clients together that have started and
will arrive. It retains their results until their round. Checkpoints do not contain
these results: a resumed run computes them again.

These trainings are a wave (``clock/wave_schedule.py``). Ranks meet once in it. The
uploads for all rounds of the wave travel together, and rank 0 retains them until their
round.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.clock.calendar import Calendar
from hpcfl.clock.wave_schedule import Wave, wave_from
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Inbox, Mean, Message, fields
from hpcfl.methods.base import State
from hpcfl.simulation import record
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import Reports
from hpcfl.storage.clients import ClientStore

SENT = "in flight."  # what the names of kept messages begin with


@dataclass(frozen=True)
class Made:
    """Results of a job, beside its rows.

    Attributes:
        weights: in each mean that it sends for, by name.
        finite: whether all is finite; else the client diverged.
        numbers: the client's own, by name.
        columns, recorded: as those of ``record.Numbers``.
    """

    weights: dict[str, float]
    finite: bool
    numbers: dict[str, float]
    columns: list[str]
    recorded: list[str]


@dataclass
class Collected:
    """Gathered values of the later rounds of a wave.

    Attributes:
        reports: by round; of rounds in which ranks meet to score there is none.
        uploads: what arrives in each round, on rank 0.
        diverged: clients, of all rounds of the wave.
    """

    reports: dict[int, Reports] = field(default_factory=dict)
    uploads: dict[int, State] = field(default_factory=dict)
    diverged: np.ndarray = field(default_factory=lambda: np.arange(0))


class InFlight:
    """The messages that clients at work started from, and what this rank's clients have
    made that is yet to arrive.

    Attributes:
        messages: the inbox that each of the server's models came to, by its version, as
            far as it was sent.
        collected: of the wave under way.
    """

    def __init__(
        self, communicator: Communicator, prepared: Prepared, last: int
    ) -> None:
        """``last``: the last round that is played."""
        assert prepared.calendar is not None
        self._calendar: Calendar = prepared.calendar
        self._communicator = communicator
        self._prepared = prepared
        self._last = last
        self._trained = 0  # jobs from versions below it are trained
        self._rounds = range(0)  # of the wave under way
        self._made: dict[int, Made] = {}
        self._uploads: ClientStore | None = None
        self._private = prepared.store.like(prepared.store.template)
        self.messages: dict[int, Inbox] = {}
        self.collected = Collected()

    def begin(self, number: int) -> Wave | None:
        """Return the wave that begins with a round, or None in the middle of a wave."""
        if number in self._rounds:
            return None
        wave = wave_from(self._calendar, number, self._trained, self._last)
        self._trained, self._rounds = number, wave.rounds
        self.collected = Collected()
        return wave

    def keep_message(self, version: int, message: Message, server: State) -> None:
        """On rank 0: keep the message that one of the server's models came to."""
        for name, entry in fields(message).items():
            server[f"{SENT}{version}.{name}"] = entry.tensor

    def find_field(self, version: int, name: str, server: State) -> Tensor:
        """Return a field of a retained message. On rank 0."""
        return server[f"{SENT}{version}.{name}"]

    def send_messages(self, server: State) -> None:
        """Send the retained messages in ``server`` that were not sent before to all
        ranks. Collective call.
        """
        unsent: dict[str, Any] = {
            name: tensor
            for name, tensor in server.items()
            if name.startswith(SENT) and _version(name) not in self.messages
        }
        nobody = np.arange(0)
        arrived, _ = exchange.send(
            communicator=self._communicator,
            placement=self._prepared.placement,
            ids=nobody,
            message=unsent,
            device=self._prepared.resources.device,
        )
        for name, tensor in arrived.items():
            _, version, of_field = name.split(".", 2)
            self.messages.setdefault(int(version), {})[of_field] = tensor

    def inbox(self, version: int) -> Inbox:
        """Return the inbox of clients that start from a version, or {} without
        messages.
        """
        return self.messages.get(version, {})

    def forget_messages(self, number: int, server: State) -> None:
        """Forget, after a round, all messages from which nobody at work started."""
        awaited = self._calendar.step(number).awaited
        for version in list(self.messages):
            if version not in awaited:
                del self.messages[version]
        for name in list(server):
            if name.startswith(SENT) and _version(name) not in awaited:
                del server[name]

    def keep_made(self, fleet: Fleet, message: Message, finite: Tensor) -> None:
        """Keep what a fleet made until its clients arrive."""
        of_fleet = record.numbers(fleet, message, finite)
        rows: State = {}
        weights = {}
        for name, entry in fields(message).items():
            assert isinstance(entry, Mean)
            rows[name] = entry.tensor
            weights[name] = entry.weights.tolist()
        ids = fleet.ids.tolist()
        for position, client in enumerate(ids):
            numbers = {
                name: float(values[position])
                for name, values in of_fleet.values.items()
            }
            self._made[client] = Made(
                weights={name: of_all[position] for name, of_all in weights.items()},
                finite=bool(finite[position]),
                numbers=numbers,
                columns=of_fleet.columns,
                recorded=of_fleet.recorded,
            )
        if self._uploads is None:
            # Only results say what they are like.
            template = {name: torch.empty_like(some[0]) for name, some in rows.items()}
            self._uploads = self._prepared.store.like(template)
        self._uploads.put(ids, rows)
        self._private.put(ids, fleet.state)

    def finite(self, ids: np.ndarray) -> Tensor:
        """Return whether these clients of this rank did not diverge, bool [n]."""
        flags = [self._made[client].finite for client in ids.tolist()]
        return torch.tensor(flags, dtype=torch.bool)

    def private(self, ids: np.ndarray) -> State:
        """Return these clients' trained private state by name, [n, …]."""
        return self._private.get(ids.tolist(), self._prepared.resources.device)

    def means(self, ids: np.ndarray, factors: Tensor) -> dict[str, Mean]:
        """Return these clients' uploads by name, or {} before this rank has trained a
        client.

        factors: of each client [n], whole numbers; its weights are multiplied by it.
        """
        if self._uploads is None:
            return {}
        clients = ids.tolist()
        means = {}
        rows = self._uploads.get(clients, self._prepared.resources.device)
        for name, of_clients in rows.items():
            weights = [self._made[client].weights[name] for client in clients]
            means[name] = Mean(of_clients, torch.tensor(weights).double() * factors)
        return means

    def numbers(self, ids: np.ndarray) -> record.Numbers:
        """Their numbers, NaN where one has none."""
        found = record.Numbers()
        for position, client in enumerate(ids.tolist()):
            made = self._made[client]
            for name, value in made.numbers.items():
                values = found.values.setdefault(name, np.full(len(ids), np.nan))
                values[position] = value
            found.columns = sorted({*found.columns, *made.columns})
            found.recorded = sorted({*found.recorded, *made.recorded})
        return found

    def forget_uploads(self, ids: np.ndarray) -> None:
        """Forget what they sent, which has travelled."""
        if self._uploads is not None:
            self._uploads.forget(ids.tolist())

    def forget(self, ids: np.ndarray) -> None:
        """Forget all that they made: they have arrived."""
        for client in ids.tolist():
            del self._made[client]
        self._private.forget(ids.tolist())
        self.forget_uploads(ids)


def _version(name: str) -> int:
    """Return the version of a retained message by the name of one of its fields."""
    _, version, _ = name.split(".", 2)
    return int(version)
