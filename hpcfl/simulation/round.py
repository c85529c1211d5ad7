"""One round of a federation, stage by stage, as every rank plays it."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Inbox, Message, only
from hpcfl.communication.message import select as part_of
from hpcfl.errors import Diverged
from hpcfl.methods.base import State
from hpcfl.rows.declared import DeclaredTensors, FixedTensors, NamedTensors
from hpcfl.simulation import record
from hpcfl.simulation.message_check import checked
from hpcfl.simulation.participation import RoundPlan
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.stages import named, on_this_rank, stage
from hpcfl.storage.moments import AFTER, BEFORE
from hpcfl.storage.results import FINAL

FleetType = Callable[..., Fleet]
PHASES = ("send", "gather", "aggregate", "checkpoint")  # of which rank 0 has seconds


def nothing() -> None:
    """What a rank does while others train, if there is nothing to do."""


def no_vote() -> int:
    """The vote of a rank that wants nothing done after the round."""
    return 0


@dataclass(frozen=True)
class LocalWork:
    """What this rank's n participants made.

    ids: theirs, ascending.
    message: what they send, finite or not.
    state: their private state after it, by name.
    finite: bool [n], which of them have finite numbers only; the others diverged.
    """

    ids: np.ndarray
    message: Message
    state: Mapping[str, Tensor]
    finite: Tensor

    @cached_property
    def upload(self) -> Message:
        """The messages of those that did not diverge."""
        return only(self.message, self.finite)


@dataclass(frozen=True)
class Reports:
    """What all ranks told of their work, before any model travels.

    numbers: all clients' own, on rank 0.
    diverged: ids of the clients that diverged.
    uploads: the header of each rank's messages, by rank.
    vote: the highest vote of the ranks.
    """

    numbers: record.Gathered
    diverged: np.ndarray
    uploads: list[list[list[Any]]]
    vote: int


@dataclass(frozen=True)
class Result:
    """A round that was played.

    vote: the highest vote of the ranks on what follows.
    final: whether it was the scoring after the last aggregation.
    clusters: which clients are alike, on rank 0 in a scored round with shifts.
    costs: bytes, floats and seconds, as rank 0 counts them, and the clients' own time.
    """

    number: int
    vote: int
    final: bool
    numbers: record.Gathered
    costs: dict[str, Any]
    clusters: record.Clusters | None = None

    @cached_property
    def values(self) -> dict[str, Any]:
        """The round's numbers by name, to be recorded on rank 0."""
        of_clusters = self.clusters.values() if self.clusters else {}
        whole = self.costs | {FINAL: int(self.final)}
        return self.numbers.values | of_clusters | whole


class Round:
    """A round of a federation as this rank takes part in it.

    ``play`` plays all of it. Its stages can also be called one by one, by who wants no
    more than some of them. Each stage says in its attribute ``collective`` whether all
    ranks meet in it.
    """

    final = False

    def __init__(
        self,
        plan: RoundPlan,
        communicator: Communicator,
        prepared: Prepared,
        server: State,
        fleet_type: FleetType = Fleet,
    ) -> None:
        """Args:
        plan: who takes part, from ``participation.select``.
        server: the server's state, which the round changes; empty on workers.
        fleet_type: makes the fleets that the method gets, from the fields of one.
        """
        self.plan = plan
        self.communicator = communicator
        self.prepared = prepared
        self.server = server
        self.fleet_type = fleet_type
        self.stopwatch = prepared.resources.stopwatch
        self.bytes_before = communicator.bytes_sent, communicator.bytes_received
        self.form_fleets()

    def form_fleets(self) -> None:
        """Form the fleets of this rank's participants and observers."""
        plan = self.plan
        self.participants = self.fleet(plan.cohort)
        self.observers = self.fleet(np.setdiff1d(plan.audience, plan.cohort))

    @property
    def fleets(self) -> list[Fleet]:
        """All fleets of this rank, once ``work`` is done."""
        return [self.participants, self.observers]

    @property
    def name(self) -> str:
        """What messages call the round."""
        return f"round {self.plan.number}"

    def fleet(self, ids: np.ndarray) -> Fleet:
        """Those of some clients that live on this rank."""
        number, scored = self.plan.number, self.plan.scored
        return self.prepared.fleet(ids, number, scored, self.fleet_type)

    def play(
        self,
        vote: Callable[[], int] = no_vote,
        meanwhile: Callable[[], None] = nothing,
    ) -> Result:
        """Collective. Play the round.

        Args:
            vote: asked after the local work for what this rank wants done after the
                round; the highest vote of all ranks is in the result.
            meanwhile: called while the workers train, for which rank 0 has time.

        Raises:
            RankFailure: something failed on this rank alone.
            RunFailure: clients diverged, on all ranks.
        """
        inbox, floats_down = self.send()
        meanwhile()
        work = self.work(inbox)
        reports = self.collect_reports(work, vote)
        self.refuse_diverged(reports)
        cohort = np.setdiff1d(self.plan.cohort, reports.diverged)
        uploads = self.collect_uploads(cohort, work, reports)
        self.store_state(work)
        self.aggregate(cohort, uploads)
        return self.result(reports, floats_down)

    @stage("send", "what the server sends", collective=True)
    def send(self) -> tuple[Inbox, float]:
        """Send the method's message to the audience.

        Returns what arrived for those of them that live on this rank, and the mean
        floats that a client was sent, 0 on the workers.
        """
        return self.send_by("send", self.plan.audience)

    def send_by(self, hook: str, ids: np.ndarray) -> tuple[Inbox, float]:
        """Collective. Send to some clients what a hook of the method returns."""
        prepared, message = self.prepared, None
        if self.communicator.is_server:
            message = self.message(hook, ids)
        device = prepared.resources.device
        return exchange.send(
            self.communicator, prepared.placement, ids, message, device
        )

    def message(self, hook: str, ids: np.ndarray) -> Message:
        """What a hook of the method sends to some clients; on rank 0."""
        audience = self.prepared.audience(ids, self.plan.number)
        server = FixedTensors(self.server, "server")
        returned = getattr(self.prepared.method, hook)(server, audience)
        return checked(hook, returned, len(ids), downwards=True)

    @stage("train", "local work", collective=False)
    def work(self, inbox: Inbox) -> LocalWork:
        """Train this rank's participants and score its observers."""
        participants = self.participants
        ids = participants.ids
        participants.pace = self.plan.pace(ids)
        message: Message = {}
        if len(ids):
            returned = self.call("update", participants, inbox)
            message = checked("update", returned, len(ids), downwards=False)
            self.prepared.store.check_state(len(ids), participants.state)
        self.call("observe", self.observers, inbox)
        finite = record.finite(participants, message)
        return LocalWork(ids, message, participants.state, finite)

    def call(self, hook: str, fleet: Fleet, inbox: Inbox) -> Any:
        """What a hook of the method returns for a fleet; None where that is empty."""
        if not len(fleet.ids):
            return None
        with on_this_rank(f"{self.name}, {named(fleet.ids)}"):
            own_inbox = NamedTensors(self.inbox_of(fleet, inbox), "inbox")
            return getattr(self.prepared.method, hook)(fleet, own_inbox)

    def inbox_of(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """The part of this rank's inbox that is for the clients of a fleet."""
        owner = self.prepared.placement.owner[self.plan.audience]
        receivers = self.plan.audience[owner == self.communicator.rank]
        if len(receivers) == len(fleet.ids):
            return inbox
        positions = np.searchsorted(receivers, fleet.ids)
        return part_of(inbox, torch.from_numpy(positions))

    @stage("gather", "the clients' numbers", collective=True)
    def collect_reports(self, work: LocalWork, vote: Callable[[], int]) -> Reports:
        """Bring all clients' numbers to rank 0, and tell all ranks who diverged.

        Models follow in a stage of their own, because their number depends on it.
        """
        numbers = self.numbers(work)
        diverged = work.ids[~work.finite.numpy()]
        report = [
            exchange.header(work.upload),
            diverged.tolist(),
            record.header(numbers, dict(self.stopwatch.seconds)),
            vote(),
        ]
        with self.communicator.collective_block():
            reports_by_rank = self.communicator.allgather(report)
            uploads, lost, headers, votes = zip(*reports_by_rank, strict=True)
            gathered = record.gather(
                self.communicator,
                self.prepared.placement,
                np.concatenate([self.plan.audience, self.plan.newcomers]),
                len(self.prepared.counts),
                numbers,
                headers,
                self.prepared.resources.scores,
            )
        of_all_ranks = np.array(sorted(itertools.chain(*lost)), np.int64)
        return Reports(gathered, of_all_ranks, list(uploads), max(votes))

    def numbers(self, work: LocalWork) -> record.OfFleets:
        """The numbers of this rank's clients, by fleet."""
        trained = record.numbers(self.participants, work.message, work.finite)
        if self.prepared.config.participation.by_losses:
            trained.values["floats_up"] += 1
        scored = record.numbers(self.observers, None, None)
        return [(self.participants.ids, trained), (self.observers.ids, scored)]

    def refuse_diverged(self, reports: Reports) -> None:
        """Raise RunFailure, on all ranks alike, where diverged clients end the run."""
        if not len(reports.diverged):
            return
        if self.prepared.config.training.on_divergence == "stop":
            raise Diverged(
                f"{self.name}: {named(reports.diverged)} diverged (NaN or Inf); "
                "lower training.lr or set training.clip and start over with --fresh, or "
                "leave such clients out with training.on_divergence = 'exclude'"
            )

    @stage("gather", "uploads", collective=True)
    def collect_uploads(
        self, cohort: np.ndarray, work: LocalWork, reports: Reports
    ) -> State | None:
        """Bring the messages of the ``cohort``, which did not diverge, to rank 0.

        None on the workers, and where nobody sends.
        """
        if not len(cohort):
            return None
        return exchange.gather(
            self.communicator,
            self.prepared.placement,
            cohort,
            work.upload,
            reports.uploads,
        )

    @stage("store", "the clients' private state", collective=False)
    def store_state(self, work: LocalWork) -> None:
        """Store the participants' private state; who diverged keeps the old one."""
        finite, state = work.finite, work.state
        if not finite.all():  # otherwise there is no reason to copy the rows
            kept = finite.nonzero()[:, 0].to(self.prepared.resources.device)
            state = {name: rows[kept] for name, rows in state.items()}
        ids = work.ids[finite.numpy()]
        self.prepared.store.put(ids.tolist(), state)

    @stage("aggregate", "aggregation", collective=False)
    def aggregate(self, cohort: np.ndarray, uploads: State | None) -> None:
        """Let the server take its step, on rank 0, unless nobody sent anything."""
        if uploads is not None:
            senders = self.prepared.cohort(cohort, self.plan.number)
            uplink: Any = NamedTensors(self.uplink(cohort, uploads), "uplink")
            method = self.prepared.method
            server: Any = DeclaredTensors(
                self.server, "server", "server_state", method.varying
            )
            method.aggregate(server, senders, uplink)
            self.server.update(server)

    def uplink(self, cohort: np.ndarray, uploads: State) -> State:
        """What the method's server gets of what arrived, on rank 0."""
        return uploads

    def result(self, reports: Reports, floats_down: float) -> Result:
        """The round as it was played. From now on seconds are the next round's."""
        sent, received = self.bytes_before
        costs: dict[str, Any] = {
            "bytes_down": self.communicator.bytes_sent - sent,
            "bytes_up": self.communicator.bytes_received - received,
            "floats_down": floats_down,
        }
        for phase in PHASES:
            costs[f"seconds/{phase}"] = self.stopwatch.seconds[phase]
        costs["seconds/round"] = self.stopwatch.lap()
        self.stopwatch.seconds.clear()
        costs |= self.times()
        return Result(
            self.plan.number,
            reports.vote,
            self.final,
            reports.numbers,
            costs,
            self.clusters(),
        )

    def clusters(self) -> record.Clusters | None:
        """Which clients are alike, and which the method found to be; on rank 0."""
        shifts = self.prepared.shifts
        if shifts is None or not (self.communicator.is_server and self.plan.scored):
            return None
        found = self.prepared.method.found_clusters(self.server)
        groups, _ = shifts.kinds(self.plan.number)
        return record.Clusters(
            groups, shifts.drifts, None if found is None else found.cpu().numpy()
        )

    def times(self) -> dict[str, Any]:
        """The clients' own time in this round on rank 0, by name; {} elsewhere, and
        without ``[time]``.
        """
        calendar = self.prepared.calendar
        if calendar is None or not self.communicator.is_server:
            return {}
        return calendar.numbers(self.plan.number)


class FinalScoring(Round):
    """The scoring of the models that the last aggregation made, as round R + 1.

    There is no cohort, so nobody sends anything back, and private state stays as it is.
    Newcomers are scored before and after their own training, where they do any.
    """

    final = True
    newcomers_inbox: Inbox  # what newcomers got
    newcomers: Fleet

    @property
    def name(self) -> str:
        return "after the last round"

    def times(self) -> dict[str, Any]:
        """When the last step was taken; {} without ``[time]``."""
        calendar = self.prepared.calendar
        if calendar is None:
            return {}
        return calendar.after(self.plan.number - 1)

    @stage("send", "what the server sends", collective=True)
    def send(self) -> tuple[Inbox, float]:
        """Send to everybody who is scored, and to newcomers its message to newcomers."""
        arrived = self.send_by("send", self.plan.audience)
        if len(self.plan.newcomers):
            self.newcomers_inbox, _ = self.send_by(
                "send_to_newcomers", self.plan.newcomers
            )
        return arrived

    @stage("train", "local work", collective=False)
    def work(self, inbox: Inbox) -> LocalWork:
        """Score this rank's clients and its newcomers."""
        self.call("finish", self.observers, inbox)
        if len(self.plan.newcomers):
            self.newcomers = self.prepared.new_fleet(self.fleet_type)
            if len(self.newcomers.ids):
                self.score_newcomers()
        nobody = self.participants
        return LocalWork(nobody.ids, {}, nobody.state, torch.ones(0, dtype=torch.bool))

    def score_newcomers(self) -> None:
        """Score this rank's newcomers, before and after their training if they do any.

        Their columns have names of their own: they do not count in the others' means.
        """
        method, fleet = self.prepared.method, self.newcomers
        with on_this_rank(f"{self.name}, {named(fleet.ids)}"):
            inbox: Any = NamedTensors(self.newcomers_inbox, "inbox")
            method.init_newcomers(fleet, inbox)
            if self.prepared.config.newcomers.epochs:
                method.train_newcomers(fleet, inbox)
            else:
                method.observe(fleet, inbox)
        columns = {"pre": BEFORE, "post": AFTER}
        fleet.scores = {
            columns[name]: sums
            for name, sums in fleet.scores.items()
            if name in columns
        }
        fleet.recorded = {}

    def numbers(self, work: LocalWork) -> record.OfFleets:
        """The numbers of this rank's clients and newcomers, by fleet."""
        fleets = [self.observers]
        if len(self.plan.newcomers):
            fleets.append(self.newcomers)
        return [(fleet.ids, record.numbers(fleet, None, None)) for fleet in fleets]
