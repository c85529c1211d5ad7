"""A round of a server that waits for nobody: one step, of the uploads that have arrived
for it (time.md §5, §6).

Round r makes version r of the server's model from version r − 1. Whose uploads it is
made of started from this version or from older ones; the timetable says so beforehand,
since no time depends on a number that is trained. Of the mean x̄ of what they send, and
a_u, what version u sent, the server gets

    a_v + λ(x̄ − a_v + Σ_u p_u (a_v − a_u)),

with v = r − 1, p_u the share of the weights that started from u, and λ the mean of s(τ)
times a rate: FedBuff (Nguyen et al., AISTATS 2022), the mean of the clients' changes.
FedAsync (Xie et al., OPT 2020) mixes the clients' models themselves, so it goes without
the sum. Where nobody is stale and λ = 1 it is x̄, bit for bit. What the method does with
it is the method's own affair, such as a step of an adaptive server.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.clock.calendar import Calendar
from hpcfl.clock.staleness import Staleness
from hpcfl.clock.timetable import Job, Step
from hpcfl.clock.wave_schedule import Wave
from hpcfl.communication import exchange
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import (
    Field,
    Mean,
    Message,
    Mixture,
    Pool,
    fields,
)
from hpcfl.errors import UserError
from hpcfl.methods.base import State
from hpcfl.scores.metric_names import SAMPLE_GRADIENTS
from hpcfl.simulation import dry_round, record, side_by_side
from hpcfl.simulation.in_flight import InFlight
from hpcfl.simulation.participation import is_scored
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import (
    REFUSE,
    TRAINING,
    LocalWork,
    Reports,
    Round,
    no_vote,
    store_state,
    take_step,
)
from hpcfl.simulation.side_by_side import rows_of
from hpcfl.simulation.stages import Stage

# of an upload, the client's weight in each of the means, by their names' order
WEIGHTS = "weights of arrivals"


def stages_maker(
    communicator: Communicator, prepared: Prepared, last: int
) -> Callable[[Round], Sequence[Stage]]:
    """Return a function that gives the stages of each round up to ``last``."""
    if prepared.config.time.mode != "asynchronous":
        return lambda round: TRAINING
    flights = InFlight(communicator, prepared, last)
    return lambda round: Arrivals(flights, round).stages


def tried(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Decide whether clients with different start models train side by side. Return the
    experiment with this decision. Collective call.

    They do if it is possible on all ranks with clients. Raises UserError where the
    method cannot be played asynchronously.
    """
    possible = True
    with agreed(communicator):
        if prepared.store.ids:
            refuse(prepared)
            possible = side_by_side.is_possible(prepared)
    return replace(prepared, mixes=all(communicator.allgather(possible)))


def refuse(prepared: Prepared) -> None:
    """Raise UserError where the method cannot be played so. To be called on a rank that
    hosts clients.
    """
    method = prepared.method
    reasons = [method.only_synchronous]
    for round in dry_round.watch_two(prepared):
        reasons.append(needs_a_round(round.sent, round.returned))
    for reason in reasons:
        if reason:
            raise UserError(
                f"time.mode = 'asynchronous': {method.name} cannot, because {reason}; "
                "take mode = 'synchronous'"
            )


def needs_a_round(sent: Message, returned: Message) -> str:
    """Return why messages need the clients of one round together, or "". A message that
    is more than a mean of what the server sent does.
    """
    for name, value in sent.items():
        models = isinstance(value, Pool | Mixture)
        if models or not fields({name: value})[name].shared:
            return f"its server sends clients a '{name}' of their own"
    down = fields(sent)
    for name, entry in fields(returned).items():
        if isinstance(entry, Field):
            return f"its server needs each client's own '{name}' and not their mean"
        if entry.weights.dim() == 2:
            return (
                f"a mean of '{name}' is of some of a round's clients alone, and of those "
                "that have arrived it may be of nobody"
            )
        if name not in down or down[name].tensor.shape != entry.tensor.shape[1:]:
            return (
                f"its server gets a '{name}' that it has not sent, so that nobody knows "
                "what a late one is a change of"
            )
    return ""


class Arrivals:
    """The stages of a round whose cohort are the clients whose uploads have arrived.

    If a client of the cohort has not trained yet, all clients that have started and
    will arrive train side by side: a wave. Its uploads and numbers travel at once. In
    the later rounds of the wave ranks meet only where models are scored. Clients that
    are scored before training are observers, with the private state of their last
    arrival and the server's newest model.
    """

    def __init__(self, flights: InFlight, round: Round) -> None:
        """``flights`` stay from round to round."""
        prepared, plan = round.prepared, round.plan
        assert prepared.calendar is not None
        self.round, self.flights = round, flights
        self.prepared, self.plan = prepared, plan
        self.communicator = round.communicator
        self.calendar: Calendar = prepared.calendar
        self.step: Step = self.calendar.step(plan.number)
        self.version = plan.number - 1  # which the round begins with
        self.wave = flights.begin(plan.number)
        self.meets = self.wave is not None or plan.scored
        largest = int(prepared.setup.counts.sum(dim=1).max())
        self.staleness = Staleness.from_largest_weight(prepared.config.time, largest)
        self.upload: Message = {}  # of this rank's clients, in the whole wave
        round.waits = self.meets

    @property
    def stages(self) -> Sequence[Stage]:
        """Those of an ordinary round, in which ranks meet less often."""
        meets = self.meets
        return (
            Stage("compose", "send", "what the server sends", self.compose),
            Stage("send", "send", "what the server sends", self.send, meets),
            Stage("work", "train", "local work", self.work),
            Stage("report", "gather", "the clients' numbers", self.report, meets),
            REFUSE,
            Stage("upload", "gather", "uploads", self.collect_uploads, meets),
            Stage("store", "store", "the clients' private state", self.store),
            Stage("aggregate", "aggregate", "aggregation", self.aggregate),
        )

    def own(self, cohort: np.ndarray) -> np.ndarray:
        """Return those of some clients that live on this rank."""
        ids: np.ndarray = cohort[self.prepared.store.hosts(cohort)]
        return ids

    def compose(self, round: Round) -> None:
        """Make the message that this version of the server's model comes to."""
        if self.communicator.is_server:
            message = round.compose("send", self.plan.audience)
            self.flights.keep_message(self.version, message, round.server)
            round.floats_down = exchange.floats(message)

    def send(self, round: Round) -> None:
        """Send all messages that are not sent yet, where ranks meet."""
        if self.meets:
            self.flights.send_messages(round.server)
        round.inbox = self.flights.inbox(self.version)

    def work(self, round: Round) -> None:
        """Train the wave that begins here, if one does; score this rank's observers."""
        if self.wave is not None:
            for jobs, scored in self.groups(self.wave):
                round.fleets.append(self.train(jobs, scored))
        audience = self.plan.audience if self.plan.scored else self.plan.audience[:0]
        self.observers = round.fleet(audience)
        round.observe(self.observers, round.inbox)
        round.fleets.append(self.observers)
        own = self.own(self.plan.cohort)
        private, finite = self.flights.private(own), self.flights.finite(own)
        round.work = LocalWork(own, {}, private, finite)

    def groups(self, wave: Wave) -> list[tuple[list[Job], bool]]:
        """Group the jobs of this rank's clients in a wave into fleets. Each group says
        whether its models are scored.

        Clients of a fleet have one learning rate. They start from one version, unless
        the method supports several.
        """
        config = self.prepared.config
        groups: dict[tuple[Any, bool], list[Job]] = {}
        clients = np.array([job.client for _, job in wave.starts], np.int64)
        is_own = self.prepared.store.hosts(clients)
        for number, job in itertools.compress(wave.starts, is_own):
            scored = is_scored(config, number)
            if number == self.plan.number:
                scored = self.plan.scored
            group = groups.setdefault((self.kind(job.version), scored), [])
            group.append(job)
        return [
            (sorted(jobs, key=lambda job: job.client), scored)
            for (_, scored), jobs in groups.items()
        ]

    def kind(self, version: int) -> Any:
        """Return the grouping key of a fleet whose clients start from a version."""
        if not self.prepared.mixes:
            return version
        setup, round = self.prepared.setup, version + 1
        return setup.learning_rate(round), setup.plain_rate(round)

    def train(self, jobs: list[Job], scored: bool) -> Fleet:
        """Train clients side by side, and keep their results; return their fleet."""
        ids = np.array([job.client for job in jobs])
        versions = np.array([job.version for job in jobs])
        first = int(versions[0])
        fleet_type = self.round.fleet_type
        fleet = self.prepared.fleet(ids, first + 1, scored, fleet_type)
        fleet.rounds = versions + 1
        inbox = self.flights.inbox(first)
        if (versions != first).any():
            messages = [self.flights.inbox(version) for version in versions.tolist()]
            inbox = rows_of(messages)
        fleet.scores_starts = False
        shares = np.array([job.share for job in jobs])
        fleet.pace = None if (shares == 1).all() else shares
        with self.round.on_clients(fleet):
            inboxes = self.prepared.hooks.open(fleet, inbox)
            returned = self.prepared.method.update(fleet, inboxes.pop())
            message = self.prepared.hooks.seal(fleet, inboxes, returned)
        self.prepared.store.check_state(len(ids), fleet.state)
        self.flights.keep_made(fleet, message, record.finite(fleet, message))
        return fleet

    def uploads_of(self, wave: Wave) -> Message:
        """Return the uploads of this rank's finite clients in a wave. Each round has
        means weighted by staleness, and all weights.
        """
        message: dict[str, Mean | Field] = {}
        senders, tables = [], []
        for number in wave.rounds:
            step = self.calendar.step(number)
            own = self.own(step.cohort)
            own = own[self.flights.finite(own).numpy()]
            factors = torch.tensor(self.staleness.weights(step.staleness)).double()
            places = np.searchsorted(step.cohort, own)
            means = self.flights.means(own, factors[places])
            if means:
                weights = [means[name].weights for name in sorted(means)]
                senders.append(own)
                tables.append(torch.stack(weights, dim=1))
            for name, mean in means.items():
                message[f"{number}.{name}"] = mean
        if message:
            order = np.argsort(np.concatenate(senders))
            message[WEIGHTS] = Field(torch.cat(tables)[order], floats=0)
        return message

    def report(self, round: Round) -> None:
        """Take the reports of this round, which ranks exchange where they meet."""
        if self.meets:
            self.meet(round.work, round.vote)
        round.reports = self.flights.collected.reports.pop(self.plan.number)

    def meet(self, work: LocalWork, vote: Callable[[], int]) -> None:
        """Gather all clients' numbers on rank 0, and report diverged clients to all
        ranks. Collective call.

        The first round of a wave also covers the wave's rounds in which ranks do not
        meet.
        """
        collected = self.flights.collected
        diverged = np.arange(0)
        if self.wave is not None:
            diverged = self.diverged(self.wave)
            self.upload = self.uploads_of(self.wave)
        rounds = self.list_reported(work)
        seconds = dict(self.round.stopwatch.seconds)
        headers = []
        for _, numbers in rounds.values():
            headers.append(record.header(numbers, seconds))
            seconds = {}  # the other rounds take none
        report = [exchange.header(self.upload), diverged.tolist(), headers, vote()]
        with self.communicator.collective_block():
            of_ranks = self.communicator.allgather(report)
            uploads, lost, headers_of_ranks, votes = zip(*of_ranks, strict=True)
            gathered = {}
            for position, (number, (audience, numbers)) in enumerate(rounds.items()):
                gathered[number] = record.gather(
                    communicator=self.communicator,
                    placement=self.prepared.placement,
                    audience=audience,
                    clients=len(self.prepared.counts),
                    fleets=numbers,
                    headers=[headers[position] for headers in headers_of_ranks],
                    scores=self.prepared.resources.scores,
                )
        if self.wave is not None:
            all_lost = list(itertools.chain(*lost))
            collected.diverged = np.array(sorted(all_lost), np.int64)
        for number, of_round in gathered.items():
            cohort = self.calendar.step(number).cohort
            absent = np.intersect1d(cohort, collected.diverged)
            collected.reports[number] = Reports(of_round, absent, [], no_vote())
        own = collected.reports[self.plan.number]
        own = replace(own, uploads=list(uploads), vote=max(votes))
        collected.reports[self.plan.number] = own

    def list_reported(
        self, work: LocalWork
    ) -> dict[int, tuple[np.ndarray, record.OfFleets]]:
        """Return the rounds that ranks report when they meet: clients with numbers, and
        the numbers of this rank.
        """
        rounds = {self.plan.number: (self.plan.audience, self.numbers(work))}
        if self.wave is None:
            return rounds
        for number in self.wave.rounds[1:]:
            if not is_scored(self.prepared.config, number):
                cohort = self.calendar.step(number).cohort
                own = self.own(cohort)
                rounds[number] = cohort, [(own, self.flights.numbers(own))]
        return rounds

    def diverged(self, wave: Wave) -> np.ndarray:
        """Return the diverged clients of this rank that arrive in a wave."""
        found = [np.arange(0)]
        for number in wave.rounds:
            own = self.own(self.calendar.step(number).cohort)
            found.append(own[~self.flights.finite(own).numpy()])
        return np.concatenate(found)

    def numbers(self, work: LocalWork) -> record.OfFleets:
        arrived = self.flights.numbers(work.ids)
        scored = record.numbers(self.observers, None, None)
        both = np.isin(self.observers.ids, work.ids)
        if both.any():
            # what a client computed to be scored counts beside its training
            counted = scored.values[SAMPLE_GRADIENTS]
            counted[both] += arrived.values[SAMPLE_GRADIENTS]
            arrived.values[SAMPLE_GRADIENTS] = counted[both]
        return [(work.ids, arrived), (self.observers.ids, scored)]

    def collect_uploads(self, round: Round) -> None:
        """Bring the means of the uploads of the cohort to rank 0; where a wave begins
        those of all its rounds travel.
        """
        if self.wave is not None:
            self.gather_uploads(self.wave, round.reports)
        uploads = self.flights.collected.uploads
        round.uploads = uploads.pop(self.plan.number, None)

    def gather_uploads(self, wave: Wave, reports: Reports) -> None:
        """Gather the uploads of a wave on rank 0. Collective call."""
        collected = self.flights.collected
        senders = {}
        for number in wave.rounds:
            cohort = self.calendar.step(number).cohort
            senders[number] = np.setdiff1d(cohort, collected.diverged)
        all_senders = np.sort(np.concatenate([*senders.values()]))
        if not len(all_senders):
            return
        gathered = exchange.gather(
            communicator=self.communicator,
            placement=self.prepared.placement,
            ids=all_senders,
            message=self.upload,
            headers=reports.uploads,
        )
        self.flights.forget_uploads(self.own(all_senders))
        self.upload = {}
        if gathered is None:
            return
        weights = gathered.pop(WEIGHTS, None)
        for number, ids in senders.items():
            if not len(ids):
                continue
            uploads = collected.uploads[number] = {}
            if weights is not None:
                uploads[WEIGHTS] = weights[np.searchsorted(all_senders, ids)]
        for name, mean in gathered.items():
            of_round, of_field = name.split(".", 1)
            if int(of_round) in collected.uploads:
                collected.uploads[int(of_round)][of_field] = mean

    def store(self, round: Round) -> None:
        """Store the private state of the cohort, which has arrived."""
        store_state(round)
        self.flights.forget(round.work.ids)

    def aggregate(self, round: Round) -> None:
        """Let the server take its step; forget messages that no client trains on."""
        if round.uploads is not None:
            take_step(round, round.cohort, self.uplink(round.cohort, round.uploads))
        self.flights.forget_messages(self.plan.number, round.server)

    def uplink(self, cohort: np.ndarray, uploads: State) -> State:
        """Return the means of arrived uploads after the server's step size is
        applied.
        """
        if WEIGHTS not in uploads:
            return uploads  # the method sends nothing
        table = uploads.pop(WEIGHTS).double()
        begun = {job.client: job.version for job in self.step.jobs}
        versions = [begun[client] for client in cohort.tolist()]
        rate = self.staleness.rate([self.version - version for version in versions])
        if self.prepared.config.time.rule == "fedasync":
            # It mixes models as they are, whatever they began with.
            versions = [self.version] * len(versions)
        stepped = {}
        for name, weights in zip(sorted(uploads), table.T, strict=True):
            sent = {
                version: self.flights.find_field(version, name, self.round.server)
                for version in {*versions, self.version}
            }
            stepped[name] = step_of(
                mean=uploads[name],
                sent=sent,
                versions=versions,
                weights=weights,
                rate=rate,
            )
        return stepped


def step_of(
    mean: Tensor,
    sent: Mapping[int, Tensor],
    versions: Sequence[int],
    weights: Tensor,
    rate: float,
) -> Tensor:
    """Return the value that replaces a ``mean`` [width] of uploads on the server. It is
    rounded once.

    Args:
        sent: messages [width] of the newest version and of clients' start versions.
        versions: the start version of each client, [n].
        weights: of the clients in the mean, whole numbers, float64 [n].
        rate: λ.
    """
    newest = max(sent)
    stale = sorted({*versions} - {newest})
    if not stale and rate == 1:
        return mean
    now = sent[newest].double()
    change = mean.double() - now
    since = torch.empty_like(now)  # new memory would cost more than the sums
    for version in stale:
        begun_there = torch.tensor([one == version for one in versions])
        share = weights[begun_there].sum() / weights.sum()
        torch.sub(now, sent[version], out=since)
        change += since.mul_(share)
    return change.mul_(rate).add_(now).to(mean.dtype)
