"""The state of a round on one rank: its plan, and the results of its stages.

``stages.py`` has the stages, which change a ``Round``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import resources
from hpcfl.clients.fleet import Fleet
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import (
    Inbox,
    Message,
    Pool,
    move_inbox,
    select_clients,
    select_sound,
)
from hpcfl.errors import Diverged, RankFailure, RunFailure, UserError
from hpcfl.experiment import user_code
from hpcfl.methods.base import State
from hpcfl.rows.declared import Watch, refuse_changes
from hpcfl.simulation import record
from hpcfl.simulation.prepare import Prepared
from hpcfl.storage.results import FINAL

MOST_IDS = 10  # maximum number of client ids in a message


def make_empty_ids() -> np.ndarray:
    """Return an empty array of ids."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RoundPlan:
    """Participants of a round. Ids are ascending.

    Attributes:
        number: number of the round, from 1.
        cohort: ids [n] of the clients that train.
        audience: ids [m] of the clients that receive a message: the cohort, and
            clients whose models are only scored.
        is_scored: whether models are scored.
        newcomers: ids of clients that never took part in training and are scored after
            the last round.
        epoch_shares: fraction of the epochs of each local training that each client of the
            cohort completes, [n]; None if all clients complete all epochs.
        is_final: whether this is the scoring after the last aggregation.
    """

    number: int
    cohort: np.ndarray
    audience: np.ndarray
    is_scored: bool
    newcomers: np.ndarray = field(default_factory=make_empty_ids)
    epoch_shares: np.ndarray | None = None
    is_final: bool = False

    @property
    def name(self) -> str:
        """The name of the round in messages."""
        return "after the last round" if self.is_final else f"round {self.number}"

    def select_epoch_shares(self, ids: np.ndarray) -> np.ndarray | None:
        """Return ``epoch_shares`` for some clients of the cohort, [k], or None."""
        if self.epoch_shares is None:
            return None
        return self.epoch_shares[np.searchsorted(self.cohort, ids)]

    def select(self, ids: np.ndarray) -> "RoundPlan":
        """Return the plan for some clients only, all of which are scored."""
        trained = np.intersect1d(ids, self.cohort)
        return replace(
            self,
            cohort=trained,
            audience=ids,
            is_scored=True,
            epoch_shares=self.select_epoch_shares(trained),
        )


def vote_to_continue() -> int:
    """Return the vote to continue without a checkpoint."""
    return 0


@dataclass(frozen=True)
class LocalWork:
    """Results of this rank's n participants.

    Attributes:
        ids: ids of the participants, ascending.
        message: their uploads, finite or not.
        state: their private state after the round, by name.
        finite: mask of the participants with only finite numbers, bool [n]; the other
            participants diverged.
    """

    ids: np.ndarray
    message: Message
    state: Mapping[str, Tensor]
    finite: Tensor

    @cached_property
    def upload(self) -> Message:
        """The messages of the participants that did not diverge."""
        return select_sound(self.message, self.finite)


@dataclass(frozen=True)
class Collected:
    """Facts about the work of all ranks, gathered before models are sent.

    Attributes:
        numbers: numbers of all clients, on rank 0.
        diverged: ids of the diverged clients.
        received_finite: whether all diverged clients received only finite numbers.
        headers: description of each rank's uploads, by rank.
        vote: highest vote of the ranks.
    """

    numbers: record.Gathered
    diverged: np.ndarray
    received_finite: bool
    headers: list[exchange.Header]
    vote: int


@dataclass(frozen=True)
class Result:
    """Result of a round.

    Attributes:
        plan: participants of the round.
        numbers: numbers of all clients.
        measured: metrics of the whole round, on rank 0: bytes, floats, seconds, times of
            the schedule, metrics of overlays and clusters.
        divergence: description of the diverged clients, "" without any.
    """

    plan: RoundPlan
    numbers: record.Gathered
    measured: dict[str, Any]
    divergence: str = ""

    @cached_property
    def values(self) -> dict[str, Any]:
        """The round's metrics by name, which rank 0 records."""
        return self.numbers.values | self.measured | {FINAL: int(self.plan.is_final)}


@dataclass
class Round:
    """A round of a federation on this rank.

    ``stages.play`` runs a list of stages, such as ``TRAINING``, on it. Stages in
    parentheses set the attributes.

    Attributes:
        plan: participants of the round.
        communicator: communicator of all ranks.
        prepared: experiment.
        server: state of the server, which the round changes; empty on workers.
        vote: function that returns this rank's vote on the next action. It is called
            after the local work, and the highest vote of all ranks wins.
        fleets: this rank's fleets that trained or were scored, without their state
            (work).
        message: message of the method to the audience, on rank 0 until it is sent
            (compose).
        inbox: messages received for this rank's clients (send).
        floats_down: mean number of floats sent to a client; 0 on workers (send).
        work: results of this rank's participants (work).
        numbers: ids and numbers of this rank's clients, by fleet (work).
        collected: facts gathered from all ranks (collect).
        uploads: messages received by rank 0; None without uploads (upload).
        stopwatch: times of this rank's phases.
        bytes_before: bytes that this rank had sent and received before the round.
    """

    plan: RoundPlan
    communicator: Communicator
    prepared: Prepared
    server: State
    vote: Callable[[], int] = vote_to_continue
    fleets: list[Fleet] = field(default_factory=list)
    message: Message = field(default_factory=dict)
    inbox: Inbox = field(init=False)
    floats_down: float = 0.0
    work: LocalWork = field(init=False)
    numbers: list[tuple[np.ndarray, record.Numbers]] = field(default_factory=list)
    collected: Collected = field(init=False)
    uploads: State | None = None

    def __post_init__(self) -> None:
        self.stopwatch = self.prepared.resources.stopwatch
        traffic = self.communicator
        self.bytes_before = traffic.bytes_sent, traffic.bytes_received
        self._watch = Watch(self.server)

    @property
    def name(self) -> str:
        """The name of the round in messages."""
        return self.plan.name

    @property
    def cohort(self) -> np.ndarray:
        """The ids of the participants that did not diverge (collect)."""
        return np.setdiff1d(self.plan.cohort, self.collected.diverged)

    def describe_divergence(self) -> str:
        """Return the diverged clients and the cause as text, "" without any (collect).

        Uploads of earlier rounds were finite, so only hooks on the server can have made
        NaN or Inf in its message.
        """
        if not len(self.collected.diverged):
            return ""
        finding = "diverged (NaN or Inf)"
        if not self.collected.received_finite:
            finding = (
                "received NaN or Inf from the server, although all uploads were finite: "
                "see 'aggregate' and 'send' of method.name = "
                f"'{self.prepared.method.name}', and overlays"
            )
        return f"{self.name}: {describe_clients(self.collected.diverged)} {finding}"

    def refuse_changes(self) -> None:
        """Raise UserError if a hook has changed a tensor of the server in place.

        Checkpoints write these tensors during the next round.
        """
        for name in self._watch.end():
            raise UserError(
                f"'{self.prepared.method.name}' changes server['{name}'] in place; assign a "
                f"new tensor in 'aggregate', such as server['{name}'] = "
                f"server['{name}'] + change"
            )

    def make_fleet(self, ids: np.ndarray) -> Fleet:
        """Return the fleet of those clients in ``ids`` that are on this rank."""
        return self.prepared.make_fleet(ids, self.plan.number, self.plan.is_scored)

    def make_message(self, hook: str, ids: np.ndarray) -> Message:
        """Return the message of a hook of the method to some clients; {} on workers.

        Args:
            hook: name of the hook.
            ids: ids of the clients.
        """
        if not self.communicator.is_server:
            return {}
        audience = self.prepared.make_audience(ids, self.plan.number)
        return self.prepared.hooks.compose(hook, self.server, audience)

    def deliver(self, ids: np.ndarray, message: Message) -> tuple[Inbox, float]:
        """Send a message from rank 0 to some clients. Collective call.

        Args:
            ids: ids of the clients.
            message: message, on rank 0.

        Returns:
            The inbox of those clients that are on this rank, and the mean number of
            floats sent to a client (0 on workers). The inbox is on the CPU if the
            device cannot hold the rows of all these clients at once.
        """
        resources = self.prepared.resources
        device = resources.device
        if self.prepared.store.is_hosted(ids).sum() > resources.clients_on_device:
            device = torch.device("cpu")
        return exchange.send(
            communicator=self.communicator,
            placement=self.prepared.placement,
            ids=ids,
            message=message,
            device=device,
        )

    def group_by_memory(self, ids: np.ndarray) -> list[np.ndarray]:
        """Return the ids of this rank's clients in groups whose rows fit on the device.

        There is at least one group.

        Args:
            ids: ids of clients on any rank.
        """
        own = ids[self.prepared.store.is_hosted(ids)]
        groups = -(-len(own) // self.prepared.resources.clients_on_device)
        return np.array_split(own, max(1, groups))

    @contextmanager
    def lend_inbox(self, fleet: Fleet, inbox: Inbox) -> Iterator[None]:
        """Open a block in which hooks read the inbox of a fleet.

        Errors in it name the clients of the fleet.

        Raises:
            RankFailure: A tensor of the inbox has changed in place. Other clients may
                receive it too, and in a single process it may be the server's.
        """
        tensors = {}
        for name, value in inbox.items():
            rows = value.rows if isinstance(value, Pool) else value
            tensors[f"inbox['{name}']"] = rows
        place = f"{self.name}, {describe_clients(fleet.ids)}"
        with on_this_rank(place), refuse_changes(tensors):
            yield

    def select_inbox(self, fleet: Fleet) -> Inbox:
        """Return the part of this rank's inbox for a fleet, on the device."""
        audience = self.plan.audience
        receivers = audience[self.prepared.store.is_hosted(audience)]
        part, resources = self.inbox, self.prepared.resources
        if len(receivers) != len(fleet.ids):
            positions = np.searchsorted(receivers, fleet.ids)
            part = select_clients(part, torch.from_numpy(positions))
        return move_inbox(part, resources.device, resources.pool_bytes)


@contextmanager
def on_this_rank(place: str) -> Iterator[None]:
    """Convert an error in a block into a RankFailure that names the place.

    Errors that are a RankFailure already, or that all ranks raise, pass unchanged.

    Args:
        place: name of the place in the message. A line of the user's code is appended
            if it raised the error.
    """
    try:
        yield
    except (RankFailure, Diverged):
        raise
    except (Exception, SystemExit) as error:  # a user's hook may call sys.exit
        # The line of the user's code is not the cause of errors such as a full disk.
        line = None if isinstance(error, RunFailure) else user_code.find_line(error)
        where = f"{place}, {line}" if line else place
        raise RankFailure(where) from (resources.explain_full_gpu(error) or error)


def describe_clients(clients: np.ndarray) -> str:
    """Return ``clients 3, 7``, with at most MOST_IDS ids, for messages."""
    plural = "s" if len(clients) > 1 else ""
    numbers = ", ".join(str(client) for client in clients[:MOST_IDS])
    more = " …" if len(clients) > MOST_IDS else ""
    return f"client{plural} {numbers}{more}"
