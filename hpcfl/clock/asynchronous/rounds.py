"""A round of an asynchronous server: one step with the uploads that have arrived
(time.md §5, §6).

Round r computes version r of the server's model from version r − 1. Its uploads started
from this version or from older ones. The timetable knows them beforehand, because no
time depends on a trained number. With the mean x̄ of the clients' uploads and the
message a_u of version u, the server receives

    a_v + λ(x̄ − a_v + Σ_u p_u (a_v − a_u)),

where v = r − 1, p_u is the share of the weights that started from u, and λ is the mean
of s(τ) times a rate. This is FedBuff (Nguyen et al., AISTATS 2022), the mean of the
clients' changes. FedAsync (Xie et al., OPT 2020) mixes the clients' models themselves,
so its value lacks the sum. Without stale uploads and with λ = 1 the value is x̄, bit
for bit. The method applies any further step, such as that of an adaptive server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clock.asynchronous.in_flight import InFlight
from hpcfl.clock.asynchronous.staleness import Staleness
from hpcfl.clock.asynchronous.timetable import AsynchronousTimetable
from hpcfl.clock.asynchronous.trial import stack_inboxes
from hpcfl.clock.calendar import Calendar, Job, list_epoch_shares
from hpcfl.clock.clients import Clients
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Field, Mean
from hpcfl.methods.base import State
from hpcfl.scores.metric_names import SAMPLE_GRADIENTS, SCORING_GRADIENTS
from hpcfl.simulation import record
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import LocalWork, Round
from hpcfl.simulation.round_schedule import is_scored
from hpcfl.simulation.stages import (
    AGGREGATE,
    COLLECT,
    COMPOSE,
    REFUSE,
    SEND,
    STORE,
    UPLOAD,
    WORK,
    Stage,
    observe,
)

# field of an upload with the client's weight in each mean, sorted by name
WEIGHTS = "weights of arrivals"
GRADIENTS = {SAMPLE_GRADIENTS, SCORING_GRADIENTS}


class AsynchronousCalendar(Calendar):
    """Rounds of an asynchronous server.

    Attributes:
        mixes: Whether clients that start from different models can form one fleet.
        flights: updates in flight.
    """

    flights: InFlight
    stored_as = "in flight."

    def __init__(self, prepared: Prepared, clients: Clients, mixes: bool) -> None:
        super().__init__(prepared, clients, AsynchronousTimetable(clients))
        self.mixes = mixes

    def begin(
        self,
        prepared: Prepared,
        communicator: Communicator,
        done: int,
        last: int,
        state: State,
    ) -> None:
        """Restore retained messages before rounds are played.

        Args:
            prepared: prepared experiment.
            communicator: communicator of all ranks.
            done: number of finished rounds.
            last: last round that is played.
            state: messages from ``get_state`` of an earlier process; empty at the start of
                a run.
        """
        self.flights = InFlight(self, prepared, last, state)

    def list_stages(self, round: Round) -> Sequence[Stage]:
        """Return the stages of a round whose cohort is the arriving clients."""
        arrivals = Arrivals(self, round)
        return (
            COMPOSE,
            replace(SEND, run=arrivals.send),
            replace(WORK, run=arrivals.work),
            COLLECT,
            REFUSE,
            UPLOAD,
            STORE,
            Stage("weigh", "aggregate", "aggregation", arrivals.weigh),
            AGGREGATE,
            Stage("forget", "store", "late uploads", arrivals.forget),
        )

    def get_state(self) -> State:
        """Return the messages on which clients train."""
        return self.flights.get_state()

    def list_decisions(self) -> dict[str, str]:
        """Return the decisions of the calendar, including the training of clients that
        start from different models.
        """
        how = "side by side" if self.mixes else "in groups of one model"
        late = {"clients that start from different models train": how}
        return late | super().list_decisions()


class Arrivals:
    """Work of a round whose cohort is the clients whose uploads have arrived.

    If a client of the cohort has not trained yet, all clients that have started and
    will arrive train side by side. Clients that are scored before training are
    observers, with the private state of their last arrival and the newest model.
    """

    def __init__(self, calendar: AsynchronousCalendar, round: Round) -> None:
        self.calendar, self.flights = calendar, calendar.flights
        self.prepared, self.plan = round.prepared, round.plan
        self.step = calendar.step(round.plan.number)
        self.version = round.plan.number - 1  # version at the beginning of the round
        # versions on which clients train at the beginning of the round
        self.awaited = calendar.step(self.version).awaited if self.version else ()
        largest = int(self.prepared.setup.counts.sum(dim=1).max())
        self.staleness = Staleness.from_largest_weight(calendar.config.time, largest)

    def send(self, round: Round) -> None:
        """Retain the server's message, and send all messages to ranks that lack them."""
        if round.communicator.is_server:
            self.flights.keep_message(self.version, round.message)
            round.floats_down = exchange.count_floats(round.message)
        for version in [*self.awaited, self.version]:
            if version not in self.flights.inboxes:
                message = self.flights.sent.get(version, {})
                inbox, _ = round.deliver(np.arange(0), dict(message))
                self.flights.inboxes[version] = inbox
        round.inbox = self.flights.inboxes[self.version]

    def work(self, round: Round) -> None:
        """Train clients if one of the cohort is untrained, and score this rank's
        observers.
        """
        for jobs, scored in self.group_jobs(self.flights.take_untrained(self.step)):
            self.train(round, jobs, scored)
        if self.plan.is_scored:
            observe(round, self.plan.audience)
        own: np.ndarray = self.plan.cohort[
            self.prepared.store.is_hosted(self.plan.cohort)
        ]
        round.work = self.arrive(own)
        arrived = self.flights.get_numbers(own)
        for observed, scored_numbers in round.numbers:
            add_gradients(scored_numbers, observed, arrived, own)
        # A client's number from scoring replaces its number of the same name here.
        round.numbers.insert(0, (own, arrived))

    def group_jobs(self, starts: list[tuple[int, Job]]) -> list[tuple[list[Job], bool]]:
        """Group the jobs of this rank's clients into fleets.

        Clients of a fleet have one learning rate. They start from one version, unless
        the method supports several. All their rows fit on the device at once.

        Args:
            starts: jobs of all ranks, each with its round.

        Returns:
            Jobs of each fleet, and whether its models are scored.
        """
        config = self.prepared.config
        groups: dict[tuple[Any, bool], list[Job]] = {}
        clients = np.array([job.client for _, job in starts], np.int64)
        is_own = self.prepared.store.is_hosted(clients)
        for (number, job), own in zip(starts, is_own, strict=True):
            if not own:
                continue
            scored = is_scored(config, number)
            if number == self.plan.number:
                scored = self.plan.is_scored
            group = groups.setdefault((self.get_group_key(job.version), scored), [])
            group.append(job)
        most, fleets = self.prepared.resources.clients_on_device, []
        for (_, scored), jobs in groups.items():
            jobs.sort(key=lambda job: job.client)
            for start in range(0, len(jobs), most):
                fleets.append((jobs[start : start + most], scored))
        return fleets

    def get_group_key(self, version: int) -> Any:
        """Return the key by which clients that start from a version are grouped into
        fleets.
        """
        if not self.calendar.mixes:
            return version
        setup, round = self.prepared.setup, version + 1
        return setup.learning_rate(round), setup.plain_rate(round)

    def train(self, round: Round, jobs: list[Job], scored: bool) -> None:
        """Train clients side by side, and retain their results.

        Args:
            round: the current round.
            jobs: jobs of the clients.
            scored: Whether their models are scored.
        """
        ids = np.array([job.client for job in jobs])
        versions = np.array([job.version for job in jobs])
        first = int(versions[0])
        fleet = self.prepared.make_fleet(ids, first + 1, scored)
        fleet.rounds = versions + 1
        inbox = self.flights.inboxes[first]
        if (versions != first).any():
            started = versions.tolist()
            inbox = stack_inboxes([self.flights.inboxes[one] for one in started])
        fleet.scoring.scores_starts = False
        fleet.pace = list_epoch_shares(jobs)
        with round.lend_inbox(fleet, inbox):
            message = self.prepared.hooks.update(fleet, inbox)
        self.flights.keep_results(fleet, message)
        fleet.state = {}  # frees memory of the device for the next fleet
        round.fleets.append(fleet)

    def arrive(self, own: np.ndarray) -> LocalWork:
        """Return the results of this rank's arriving clients, with all weights.

        Weights of means include the factors of staleness.

        Args:
            own: ids of this rank's arriving clients.
        """
        factors = torch.tensor(
            self.staleness.compute_weights(self.step.staleness)
        ).double()
        places = np.searchsorted(self.step.cohort, own)
        means = self.flights.make_means(own, factors[places]) if len(own) else {}
        message: dict[str, Mean | Field] = {**means}
        if means:
            weights = [means[name].weights for name in sorted(means)]
            message[WEIGHTS] = Field(torch.stack(weights, dim=1), floats=0)
        private, finite = self.flights.get_private(own), self.flights.find_finite(own)
        return LocalWork(own, message, private, finite)

    def weigh(self, round: Round) -> None:
        """Apply the server's step size to the means of arrived uploads."""
        if round.uploads is not None:
            round.uploads = self.apply_step_size(round.cohort, round.uploads)

    def forget(self, round: Round) -> None:
        """Forget the uploads that arrived, and messages on which no client trains."""
        self.flights.forget(round.work.ids)
        self.flights.forget_messages(self.step.awaited)

    def apply_step_size(self, cohort: np.ndarray, uploads: State) -> State:
        """Return the means of arrived uploads after applying the server's step size.

        Args:
            cohort: ids of the clients.
            uploads: means by name, with the weights of all clients.
        """
        if WEIGHTS not in uploads:
            return uploads  # the method sends nothing
        table = uploads.pop(WEIGHTS).double()
        begun = {job.client: job.version for job in self.step.jobs}
        versions = [begun[client] for client in cohort.tolist()]
        rate = self.staleness.compute_rate(
            [self.version - version for version in versions]
        )
        if self.prepared.config.time.rule == "fedasync":
            # FedAsync mixes the models themselves, whatever their start versions.
            versions = [self.version] * len(versions)
        stepped = {}
        for name, weights in zip(sorted(uploads), table.T, strict=True):
            stepped[name] = take_step(
                mean=uploads[name],
                sent={
                    version: self.flights.sent[version][name]
                    for version in {*versions, self.version}
                },
                versions=versions,
                weights=weights,
                rate=rate,
            )
        return stepped


def add_gradients(
    scored: record.Numbers,
    observed: np.ndarray,
    arrived: record.Numbers,
    own: np.ndarray,
) -> None:
    """Add the numbers of gradients of training to those of scoring.

    Args:
        scored: numbers of observers by name, which change.
        observed: ids of the observers, ascending.
        arrived: numbers of arriving clients by name.
        own: ids of the arriving clients, ascending.
    """
    both = np.isin(observed, own)
    for name in arrived.keys() & scored.keys() & GRADIENTS:
        scored[name][both] += np.nan_to_num(arrived[name][np.isin(own, observed)])


def take_step(
    mean: Tensor,
    sent: Mapping[int, Tensor],
    versions: Sequence[int],
    weights: Tensor,
    rate: float,
) -> Tensor:
    """Return the value [width] that replaces a mean of uploads on the server.

    It is rounded once.

    Args:
        mean: mean of the uploads [width].
        sent: messages [width] of the newest version and of clients' start versions.
        versions: start version of each client, [n].
        weights: weights of the clients in the mean, whole numbers, float64 [n].
        rate: step length λ.
    """
    newest = max(sent)
    stale = sorted({*versions} - {newest})
    if not stale and rate == 1:
        return mean
    now = sent[newest].double()
    change = mean.double() - now
    since = torch.empty_like(now)  # reused, because allocation costs more than the sums
    for version in stale:
        begun_there = torch.tensor([one == version for one in versions])
        share = weights[begun_there].sum() / weights.sum()
        torch.sub(now, sent[version], out=since)
        change += since.mul_(share)
    return change.mul_(rate).add_(now).to(mean.dtype)
