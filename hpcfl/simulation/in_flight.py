"""What a rank keeps between the rounds of a server that waits for nobody (time.md §6).

Clients start from older models of the server. So the messages that these models came to
stay for as long as a client is at work that started from one of them: on rank 0 as a
part of the server's state, so that checkpoints have them, and as an inbox on every rank.
What a client makes is a function of the message, of its private state and of keys, all
of which are there once it starts. Hence a rank trains all clients at once that have
started and will arrive, and keeps what they made until their round. It is not part of a
checkpoint: a run that goes on makes it again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.clock.calendar import Calendar
from hpcfl.clock.timetable import Job
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Inbox, Mean, Message, fields
from hpcfl.methods.base import State
from hpcfl.simulation import record
from hpcfl.simulation.participation import is_scored
from hpcfl.simulation.prepare import Prepared
from hpcfl.storage.clients import ClientStore

SENT = "in flight"  # what the names of kept messages begin with
UPLOAD, PRIVATE = "upload.", "private."  # what those of a client's results begin with


@dataclass(frozen=True)
class Start:
    """The start of a job that counts.

    Attributes:
        round: whose step its upload is part of.
        scored: whether its model is scored once it is trained.
    """

    job: Job
    round: int
    scored: bool


@dataclass(frozen=True)
class Made:
    """What came of a job, beside its rows.

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


class InFlight:
    """The messages that clients at work started from, and what this rank's clients have
    made that is yet to arrive.

    Attributes:
        messages: the inbox that each of the server's models came to, by its version.
    """

    def __init__(
        self,
        communicator: Communicator,
        prepared: Prepared,
        server: State,
        last: int,
    ) -> None:
        """Collective.

        Args:
            server: the server's state on rank 0, with the messages that are kept.
            last: the last round that is played.
        """
        assert prepared.calendar is not None
        self._calendar: Calendar = prepared.calendar
        self._prepared = prepared
        self._last = last
        self._trained = 0  # jobs from versions below it are trained
        self._made: dict[int, Made] = {}
        self._rows: ClientStore | None = None
        self.messages = _restored(communicator, prepared, server)

    def keep_message(self, version: int, message: Message, server: State) -> None:
        """On rank 0: keep the message that one of the server's models came to."""
        for name, entry in fields(message).items():
            server[f"{SENT}.{version}.{name}"] = entry.tensor

    def forget_messages(self, awaited: Sequence[int], server: State) -> None:
        """Forget all messages but those of the versions that are ``awaited``."""
        self.messages = {
            version: inbox
            for version, inbox in self.messages.items()
            if version in awaited
        }
        for name in list(server):
            if name.startswith(f"{SENT}.") and _version(name) not in awaited:
                del server[name]

    def startable(self, number: int) -> list[Start]:
        """The jobs to train in a round, by version and client: none if all that count in
        it are trained already, else all that have started by then and are not.
        """
        missing = [
            job
            for job in self._calendar.step(number).jobs
            if job.version >= self._trained
        ]
        if not missing:
            return []
        starts = []
        for version in range(self._trained, number):
            for round, job in self._calendar.started(version, number, self._last):
                scored = is_scored(self._prepared.config, round)
                starts.append(Start(job, round, scored))
        self._trained = number
        return starts

    def keep_made(self, fleet: Fleet, message: Message, finite: Tensor) -> None:
        """Keep what a fleet made until its clients arrive."""
        of_fleet = record.numbers(fleet, message, finite)
        rows = {PRIVATE + name: tensor for name, tensor in fleet.state.items()}
        weights = {}
        for name, entry in fields(message).items():
            assert isinstance(entry, Mean)
            rows[UPLOAD + name] = entry.tensor
            weights[name] = entry.weights.tolist()
        ids = fleet.ids.tolist()
        for position, client in enumerate(ids):
            numbers = {
                name: float(values[position])
                for name, values in of_fleet.values.items()
            }
            self._made[client] = Made(
                {name: of_all[position] for name, of_all in weights.items()},
                bool(finite[position]),
                numbers,
                of_fleet.columns,
                of_fleet.recorded,
            )
        self._store(rows).put(ids, rows)

    def arrivals(self, ids: np.ndarray) -> "Arrivals":
        """What some of this rank's clients made, which is forgotten here."""
        clients = ids.tolist()
        made = [self._made.pop(client) for client in clients]
        rows: State = {}
        if self._rows is not None:
            rows = self._rows.get(clients, self._prepared.resources.device)
            self._rows.forget(clients)
        return Arrivals(ids, made, rows)

    def _store(self, rows: State) -> ClientStore:
        """Where rows of results are kept; made when it is needed, because only results
        say what they are like.
        """
        if self._rows is None:
            template = {name: torch.empty_like(some[0]) for name, some in rows.items()}
            self._rows = self._prepared.store.like(template)
        return self._rows


@dataclass(frozen=True)
class Arrivals:
    """What n clients of this rank made that arrive in a round."""

    ids: np.ndarray
    made: list[Made]
    rows: State

    @property
    def state(self) -> State:
        """Their private state, by name, [n, …]."""
        return dict(_named(self.rows, PRIVATE))

    @property
    def finite(self) -> Tensor:
        """Which of them did not diverge, bool [n]."""
        return torch.tensor([made.finite for made in self.made], dtype=torch.bool)

    def means(self, factors: Tensor) -> dict[str, Mean]:
        """What they send.

        factors: of each client [n], whole numbers; its weights are multiplied by it.
        """
        means: dict[str, Mean] = {}
        for name, rows in _named(self.rows, UPLOAD):
            weights = [made.weights[name] for made in self.made]
            means[name] = Mean(rows, torch.tensor(weights).double() * factors)
        return means

    def numbers(self) -> record.Numbers:
        """Their numbers, NaN where one has none."""
        found = record.Numbers()
        for position, made in enumerate(self.made):
            for name, value in made.numbers.items():
                values = found.values.setdefault(name, np.full(len(self.ids), np.nan))
                values[position] = value
            found.columns = sorted({*found.columns, *made.columns})
            found.recorded = sorted({*found.recorded, *made.recorded})
        return found


def _named(rows: State, kind: str) -> Iterator[tuple[str, Tensor]]:
    """The rows of a kind, by their names without it."""
    for name, tensor in rows.items():
        if name.startswith(kind):
            yield name.removeprefix(kind), tensor


def _version(name: str) -> int:
    """The version of a kept message by the name of one of its fields."""
    _, version, _ = name.split(".", 2)
    return int(version)


def _restored(
    communicator: Communicator, prepared: Prepared, server: State
) -> dict[int, Inbox]:
    """Collective. The messages that rank 0 keeps in ``server``, on every rank."""
    kept: dict[str, Any] = {
        name: tensor for name, tensor in server.items() if name.startswith(f"{SENT}.")
    }
    nobody = np.arange(0)
    device = prepared.resources.device
    placement = prepared.placement
    arrived, _ = exchange.send(communicator, placement, nobody, kept, device)
    messages: dict[int, Inbox] = {}
    for name, tensor in arrived.items():
        _, version, field = name.split(".", 2)
        messages.setdefault(int(version), {})[field] = tensor
    return messages
