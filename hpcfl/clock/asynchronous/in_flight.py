"""Updates in flight between the rounds of an asynchronous server (time.md §6).

Clients start from older models of the server. Messages are retained while any client
still trains on them. Rank 0 stores them in the schedule's state, so that checkpoints
contain them. Every rank has them as inboxes.

A client's update depends only on the message, its private state and random keys, which
are known when it starts. Therefore a rank trains all clients together that have started
and will arrive, and retains their results until their round. Checkpoints do not contain
these results: a resumed run computes them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.clock.calendar import Calendar, Job, Step
from hpcfl.communication.message import Inbox, Mean, Message, wrap_entries
from hpcfl.methods.base import State
from hpcfl.simulation import record
from hpcfl.simulation.prepare import Prepared
from hpcfl.storage.clients import ClientStore


@dataclass(frozen=True)
class JobResult:
    """Results of a job without its tensors.

    Attributes:
        weights: weight of the client in each mean, by name.
        finite: Whether all results are finite; otherwise the client diverged.
        numbers: metrics of the client, by name.
    """

    weights: dict[str, float]
    finite: bool
    numbers: dict[str, float]


class InFlight:
    """Messages on which clients train, and results of this rank's clients that have not
    yet arrived.

    Attributes:
        sent: on rank 0, the message of each of the server's models, by version.
        inboxes: on every rank, the received messages, by version.
    """

    def __init__(
        self,
        calendar: Calendar,
        prepared: Prepared,
        last: int,
        state: State,
    ) -> None:
        """Restore retained messages.

        Args:
            calendar: calendar of the run.
            prepared: prepared experiment.
            last: last round that is played.
            state: messages from ``get_state`` of an earlier process; empty at the start of
                a run.
        """
        self._calendar = calendar
        self._store = prepared.store
        self._device = prepared.resources.device
        self._last = last
        self._trained = 0  # jobs from lower versions are trained
        self._results: dict[int, JobResult] = {}
        self._uploads: ClientStore | None = None
        self._private = self._store.make_like(self._store.template)
        self.inboxes: dict[int, Inbox] = {}
        self.sent: dict[int, State] = {}
        for key, tensor in state.items():
            version, _, name = key.partition(".")
            self.sent.setdefault(int(version), {})[name] = tensor

    def get_state(self) -> State:
        """Return the retained messages by VERSION.NAME, on rank 0."""
        return {
            f"{version}.{name}": tensor
            for version, message in self.sent.items()
            for name, tensor in message.items()
        }

    def keep_message(self, version: int, message: Message) -> None:
        """Retain the message of one of the server's models, on rank 0."""
        entries = wrap_entries(message)
        self.sent[version] = {name: entry.tensor for name, entry in entries.items()}

    def forget_messages(self, awaited: Sequence[int]) -> None:
        """Forget all messages except those on which clients still train.

        Args:
            awaited: versions of the retained messages.
        """
        for messages in (self.inboxes, self.sent):
            for version in messages.keys() - set(awaited):
                del messages[version]

    def take_untrained(self, step: Step) -> list[tuple[int, Job]]:
        """Return the jobs to train for a step, each with its round, by version and
        client.

        If one of the step's jobs is untrained, all jobs are returned that have started
        and will arrive up to the last round. Otherwise the result is empty.
        """
        if all(job.version < self._trained for job in step.jobs):
            return []
        first, trained = step.number, self._trained
        self._trained = first
        jobs = []
        for version in range(trained, first):
            jobs += self._calendar.list_started(version, first, self._last)
        return jobs

    def keep_results(self, fleet: Fleet, message: Message) -> None:
        """Retain the results of a fleet until its clients arrive.

        Args:
            fleet: fleet that has trained.
            message: its uploads.
        """
        finite = record.find_finite(fleet, message)
        of_fleet = record.compute_numbers(fleet, message, finite)
        rows: State = {}
        weights = {}
        for name, entry in wrap_entries(message).items():
            assert isinstance(entry, Mean)
            rows[name] = entry.tensor
            weights[name] = entry.weights.tolist()
        ids = fleet.ids.tolist()
        for position, client in enumerate(ids):
            numbers = {
                name: float(values[position]) for name, values in of_fleet.items()
            }
            self._results[client] = JobResult(
                weights={name: of_all[position] for name, of_all in weights.items()},
                finite=bool(finite[position]),
                numbers=numbers,
            )
        if self._uploads is None:
            # Shapes are known only from results.
            template = {name: torch.empty_like(some[0]) for name, some in rows.items()}
            self._uploads = self._store.make_like(template)
        self._uploads.put(ids, rows)
        self._private.put(ids, fleet.state)

    def find_finite(self, ids: np.ndarray) -> Tensor:
        """Return whether these clients of this rank are finite (not diverged), bool
        [n].
        """
        flags = [self._results[client].finite for client in ids.tolist()]
        return torch.tensor(flags, dtype=torch.bool)

    def get_private(self, ids: np.ndarray) -> State:
        """Return the trained private state of these clients by name, [n, …]."""
        return self._private.get(ids.tolist(), self._device)

    def make_means(self, ids: np.ndarray, factors: Tensor) -> dict[str, Mean]:
        """Return the uploads of these clients by name, or {} before this rank has
        trained a client.

        Args:
            ids: ids of the clients [n].
            factors: factor of each client's weights [n], whole numbers.
        """
        if self._uploads is None:
            return {}
        clients = ids.tolist()
        means = {}
        rows = self._uploads.get(clients, self._device)
        for name, of_clients in rows.items():
            weights = [self._results[client].weights[name] for client in clients]
            means[name] = Mean(of_clients, torch.tensor(weights).double() * factors)
        return means

    def get_numbers(self, ids: np.ndarray) -> record.Numbers:
        """Return the metrics of these clients; NaN if a client lacks one."""
        found: record.Numbers = {}
        for position, client in enumerate(ids.tolist()):
            result = self._results[client]
            for name, value in result.numbers.items():
                values = found.setdefault(name, np.full(len(ids), np.nan))
                values[position] = value
        return found

    def forget(self, ids: np.ndarray) -> None:
        """Forget the results of clients that have arrived."""
        for client in ids.tolist():
            del self._results[client]
        for store in (self._private, self._uploads):
            if store is not None:
                store.forget(ids.tolist())
