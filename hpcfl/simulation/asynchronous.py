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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.clock.staleness import Staleness
from hpcfl.clock.timetable import Job, Step
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import (
    Field,
    Inbox,
    Mean,
    Message,
    Mixture,
    Pool,
    fields,
)
from hpcfl.errors import UserError
from hpcfl.methods.base import State
from hpcfl.scores._metric_name import SAMPLE_GRADIENTS
from hpcfl.simulation import dry_round, record, side_by_side
from hpcfl.simulation.in_flight import Arrivals, InFlight
from hpcfl.simulation.message_check import checked
from hpcfl.simulation.participation import RoundPlan
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import FleetType, LocalWork, Reports, Result, Round
from hpcfl.simulation.side_by_side import rows_of
from hpcfl.simulation.stages import stage

# of an upload, the client's weight in each of the means, by their names' order
WEIGHTS = "weights of arrivals"


def round_maker(
    communicator: Communicator, prepared: Prepared, server: State, last: int
) -> Callable[..., Round]:
    """Collective. What makes the rounds up to ``last`` of an experiment, called as
    ``Round`` is.

    server: the server's state before the next round; empty on workers.
    """
    if prepared.config.time.mode != "asynchronous":
        return Round
    flights = InFlight(communicator, prepared, server, last)
    return partial(AsynchronousRound, flights)


def tried(prepared: Prepared) -> Prepared:
    """The experiment, which knows whether clients who started from different models can
    train side by side. Raises UserError where the method cannot be played so.
    """
    if not prepared.store.ids:
        return prepared
    refuse(prepared)
    return replace(prepared, mixes=side_by_side.possible(prepared))


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
    """Why messages need the clients of one round together, such as are more than a mean
    of what came down; "" where they do not.
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


class AsynchronousRound(Round):
    """A round whose cohort are the clients whose uploads have arrived.

    Whoever has started and will arrive trains once somebody of the cohort has not: all
    of them side by side. Everybody who is scored before training is an observer, with
    the private state of the last arrival and the server's newest model.
    """

    arrivals: Arrivals  # of this rank, once they are taken out of the flights

    def __init__(
        self,
        flights: InFlight,
        plan: RoundPlan,
        communicator: Communicator,
        prepared: Prepared,
        server: State,
        fleet_type: FleetType = Fleet,
    ) -> None:
        """Arguments but ``flights``, which stay from round to round, are ``Round``'s."""
        assert prepared.calendar is not None
        self.flights = flights
        self.step: Step = prepared.calendar.step(plan.number)
        self.version = plan.number - 1  # which the round begins with
        largest = int(prepared.setup.counts.sum(dim=1).max())
        self.staleness = Staleness.of(prepared.config.time, largest)
        self.trained: list[Fleet] = []
        super().__init__(plan, communicator, prepared, server, fleet_type)

    def form_fleets(self) -> None:
        nobody = self.plan.cohort[:0]
        audience = self.plan.audience if self.plan.scored else nobody
        self.participants = self.fleet(nobody)
        self.observers = self.fleet(audience)

    @property
    def fleets(self) -> list[Fleet]:
        return [*self.trained, self.observers]

    def message(self, hook: str, ids: np.ndarray) -> Message:
        message = super().message(hook, ids)
        self.flights.keep_message(self.version, message, self.server)
        return message

    @stage("train", "local work", collective=False)
    def work(self, inbox: Inbox) -> LocalWork:
        """Train whoever has started, if somebody lacks who arrives now; score this
        rank's observers.
        """
        self.flights.messages[self.version] = inbox
        for jobs, scored in self.groups():
            self.train(jobs, scored)
        self.call("observe", self.observers, inbox)
        cohort = self.plan.cohort
        own = cohort[self.prepared.store.hosts(cohort)]
        self.arrivals = arrivals = self.flights.arrivals(own)
        if not len(own):
            return LocalWork(own, {}, self.participants.state, arrivals.finite)
        message = self.uploads(arrivals)
        return LocalWork(own, message, arrivals.state, arrivals.finite)

    def groups(self) -> list[tuple[list[Job], bool]]:
        """The jobs of this rank's clients that are to be trained, those together that
        are one fleet, and whether their models are scored.

        Clients of a fleet have one learning rate. They start from one version, unless
        the method can be played with several.
        """
        groups: dict[tuple[Any, bool], list[Job]] = {}
        for start in self.flights.startable(self.plan.number):
            if start.job.client in self.prepared.store.ids:
                here = start.round == self.plan.number and self.plan.scored
                kind = self.kind(start.job.version)
                group = groups.setdefault((kind, start.scored or here), [])
                group.append(start.job)
        return [
            (sorted(jobs, key=lambda job: job.client), scored)
            for (_, scored), jobs in groups.items()
        ]

    def kind(self, version: int) -> Any:
        """What clients of one fleet have in common who start from a version."""
        if not self.prepared.mixes:
            return version
        setup, round = self.prepared.setup, version + 1
        return setup.learning_rate(round), setup.plain_rate(round)

    def train(self, jobs: list[Job], scored: bool) -> None:
        """Train clients side by side, and keep what they make."""
        ids = np.array([job.client for job in jobs])
        versions = np.array([job.version for job in jobs])
        first = int(versions[0])
        fleet = self.prepared.fleet(ids, first + 1, scored, self.fleet_type)
        fleet.rounds = versions + 1
        inbox = self.flights.messages[first]
        if (versions != first).any():
            messages = [self.flights.messages[version] for version in versions.tolist()]
            inbox = rows_of(messages)
        fleet.scores_starts = False
        shares = np.array([job.share for job in jobs])
        fleet.pace = None if (shares == 1).all() else shares
        returned = self.call("update", fleet, inbox)
        message = checked("update", returned, len(ids), downwards=False)
        self.prepared.store.check_state(len(ids), fleet.state)
        self.flights.keep_made(fleet, message, record.finite(fleet, message))
        self.trained.append(fleet)

    def inbox_of(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """All of it: what is sent is the same for all clients of a version."""
        return dict(inbox)

    def uploads(self, arrivals: Arrivals) -> Message:
        """What clients send that arrive on this rank, weighed by their staleness, and
        these weights.
        """
        factors = self.staleness.weights(self.step.staleness)
        places = np.searchsorted(self.step.cohort, arrivals.ids)
        means = arrivals.means(torch.tensor(factors)[places].double())
        if not means:
            return {}
        weights = [means[name].weights for name in sorted(means)]
        table: dict[str, Mean | Field] = {
            WEIGHTS: Field(torch.stack(weights, dim=1), floats=0)
        }
        return table | means

    def numbers(self, work: LocalWork) -> record.OfFleets:
        arrived = self.arrivals.numbers()
        scored = record.numbers(self.observers, None, None)
        both = np.isin(self.observers.ids, work.ids)
        if both.any():
            # what a client computed to be scored counts beside its training
            counted = scored.values[SAMPLE_GRADIENTS]
            counted[both] += arrived.values[SAMPLE_GRADIENTS]
            arrived.values[SAMPLE_GRADIENTS] = counted[both]
        return [(work.ids, arrived), (self.observers.ids, scored)]

    def uplink(self, cohort: np.ndarray, uploads: State) -> State:
        """The means of what arrived, moved as far as the step goes."""
        if WEIGHTS not in uploads:
            return uploads  # the method sends nothing
        table = uploads.pop(WEIGHTS).double()
        begun = {job.client: job.version for job in self.step.jobs}
        versions = [begun[client] for client in cohort.tolist()]
        rate = self.staleness.rate([self.version - version for version in versions])
        if self.prepared.config.time.rule == "fedasync":
            # It mixes models as they are, whatever they began with.
            versions = [self.version] * len(versions)
        messages = self.flights.messages
        needed = {*versions, self.version}
        stepped = {}
        for name, weights in zip(sorted(uploads), table.T, strict=True):
            sent = {version: messages[version][name].cpu() for version in needed}
            stepped[name] = step_of(uploads[name], sent, versions, weights, rate)
        return stepped

    def result(self, reports: Reports, floats_down: float) -> Result:
        """The round as it was played; messages of which nobody at work needs anything
        any more are forgotten.
        """
        self.flights.forget_messages(self.step.awaited, self.server)
        return super().result(reports, floats_down)


def step_of(
    mean: Tensor,
    sent: Mapping[int, Tensor],
    versions: Sequence[int],
    weights: Tensor,
    rate: float,
) -> Tensor:
    """What the server gets in place of a ``mean`` [width] of uploads; rounded once.

    Args:
        sent: what the versions of the server sent, [width] each; of these the newest
            and those that clients started from.
        versions: that each client started from, [n].
        weights: of the clients in the mean, whole numbers, float64 [n].
        rate: λ.
    """
    newest = max(sent)
    stale = sorted({*versions} - {newest})
    if not stale and rate == 1:
        return mean
    now = sent[newest].double()
    change = mean.double() - now
    for version in stale:
        begun_there = torch.tensor([one == version for one in versions])
        share = weights[begun_there].sum() / weights.sum()
        change += share * (now - sent[version].double())
    return (now + rate * change).to(mean.dtype)
