"""The stages of a round, and the function ``play`` that runs stages in order.

``TRAINING`` and ``FINAL_SCORING`` list the stages, which are functions of a ``Round``.
``conclude`` returns the result.

A round can fail in two ways:

* An error in a stage on one rank is a RankFailure. It aborts the job, because the other
  ranks would wait for this rank forever.
* Diverged clients are known to all ranks. All ranks raise the same RunFailure in the
  same stage and exit in order. The metrics of earlier rounds are kept.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.fleet import Fleet
from hpcfl.communication import exchange
from hpcfl.communication.message import Field, Inbox, Mean, Message, wrap_entries
from hpcfl.errors import Diverged
from hpcfl.methods.base import State
from hpcfl.rows import mixing
from hpcfl.rows.declared import describe_form
from hpcfl.simulation import record, torch_settings
from hpcfl.simulation.hooks import MessageError
from hpcfl.simulation.round import Collected, LocalWork, Result, Round, on_this_rank
from hpcfl.storage.metrics import AFTER, BEFORE

PHASES = ("send", "gather", "aggregate", "checkpoint")  # phases timed on rank 0


@dataclass(frozen=True)
class Stage:
    """One step of a round.

    Attributes:
        name: name of the stage, unique in a round.
        phase: phase of the stopwatch in which the stage is timed.
        place: name of the stage in error messages.
        run: function that reads and changes the round.
    """

    name: str
    phase: str
    place: str
    run: Callable[[Round], None]


# An observer is called after each stage, with the name of the stage and the round.
Observer = Callable[[str, Round], None]


def play(
    round: Round, stages: Sequence[Stage], observers: Sequence[Observer] = ()
) -> None:
    """Run the stages of a round in order. Collective if one of the stages is.

    Args:
        round: round that the stages read and change.
        stages: all stages of a round, or some of them.
        observers: functions called after each stage.

    Raises:
        RankFailure: Something failed on this rank alone.
        RunFailure: Clients diverged, on all ranks.
    """
    with on_this_rank(round.name), torch_settings.unchanged("your function"):
        for stage in stages:
            place = f"{round.name}, {stage.place}"
            with round.stopwatch.phase(stage.phase), on_this_rank(place):
                stage.run(round)
            for observer in observers:
                observer(stage.name, round)


def compose(round: Round) -> None:
    """Make the method's message to the audience, on rank 0."""
    round.message = round.make_message("send", round.plan.audience)


def send(round: Round) -> None:
    """Send the method's message to the audience."""
    message, round.message = round.message, {}
    round.inbox, round.floats_down = round.deliver(round.plan.audience, message)


def work(round: Round) -> None:
    """Train this rank's participants, and score the other clients of the audience."""
    plan = round.plan
    groups = round.group_by_memory(plan.cohort)
    joined = JoinedWork(sum(map(len, groups)))
    for ids in groups:
        fleet = round.make_fleet(ids)
        fleet.pace = plan.select_epoch_shares(ids)
        message: Message = {}
        if len(ids):
            inbox = round.select_inbox(fleet)
            with round.lend_inbox(fleet, inbox):
                message = round.prepared.hooks.update(fleet, inbox)
            del inbox  # frees memory of the device, as below
        joined.add(conclude_training(round, fleet, message))
        del message  # frees memory of the device for the next group
    round.work = joined.whole()
    observe(round, np.setdiff1d(plan.audience, plan.cohort))


def conclude_training(round: Round, fleet: Fleet, message: Message) -> LocalWork:
    """Return the results of participants of this rank, and record their numbers.

    Args:
        round: round in progress.
        fleet: participants after their training.
        message: their uploads.
    """
    finite = record.find_finite(fleet, message)
    trained = record.compute_numbers(fleet, message, finite)
    if round.prepared.config.participation.by_losses:
        trained["floats_up"] += 1
    state, fleet.state = fleet.state, {}
    round.fleets.append(fleet)
    round.numbers.append((fleet.ids, trained))
    return LocalWork(fleet.ids, message, state, finite)


def observe(round: Round, ids: np.ndarray) -> None:
    """Score clients that do not train, in groups whose rows fit on the device.

    Args:
        round: round in progress.
        ids: ids of clients on any rank.
    """
    for group in round.group_by_memory(ids):
        if len(group):
            score(round, group, round.prepared.method.observe)


def score(round: Round, ids: np.ndarray, hook: Callable[[Fleet, Inbox], None]) -> None:
    """Score clients of this rank by a hook of the method, and record their numbers.

    Args:
        round: round in progress.
        ids: ids of clients on this rank.
        hook: the method's ``observe`` or ``finish``.
    """
    fleet, hooks = round.make_fleet(ids), round.prepared.hooks
    if len(ids):
        inbox = round.select_inbox(fleet)
        with round.lend_inbox(fleet, inbox):
            *_, own_inbox = hooks.receive(fleet, inbox)
            hook(fleet, hooks.prepare(fleet, own_inbox))
    fleet.state = {}  # it has not changed; its memory is free for the next group
    round.fleets.append(fleet)
    round.numbers.append((ids, record.compute_numbers(fleet)))


class JoinedWork:
    """Results of groups of clients, joined in tensors on the CPU.

    The tensors have a row for every client and may be larger than memory. The results
    of a single group are not copied.

    Attributes:
        clients: total number of clients in all groups.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._only: LocalWork | None = None
        self._ids: list[np.ndarray] = []
        self._finite: list[Tensor] = []
        self._state: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}  # rows of messages
        self._weights: dict[str, Tensor] = {}  # weights of means
        self._forms: dict[str, str] = {}  # forms of messages, without clients

    def add(self, work: LocalWork) -> None:
        """Copy the results of the next group.

        Raises:
            ValueError: Its messages have other entries than those of earlier groups.
        """
        if len(work.ids) == self.clients:
            self._only = work
            return
        for name, tensor in work.state.items():
            self._put(self._state, name, tensor)
        entries = wrap_entries(work.message)
        forms = {name: describe_form(entries[name].tensor[:0]) for name in entries}
        if self._ids and forms != self._forms:
            raise ValueError(
                f"groups of clients send different messages: {self._forms}, {forms}"
            )
        self._forms = forms
        for name, entry in entries.items():
            self._put(self._rows, name, entry.tensor)
            if isinstance(entry, Mean):
                self._put(self._weights, name, entry.weights)
        self._ids.append(work.ids)
        self._finite.append(work.finite)

    def _put(self, whole: dict[str, Tensor], name: str, part: Tensor) -> None:
        if name not in whole:
            shape = [self.clients, *part.shape[1:]]
            whole[name] = mixing.get_large_memory().empty(shape, part.dtype)
        start = sum(map(len, self._ids))
        whole[name][start : start + len(part)] = part

    def whole(self) -> LocalWork:
        """Return the results of all groups as one."""
        if self._only is not None:
            return self._only
        message: dict[str, Field | Mean] = {}
        for name, rows in self._rows.items():
            message[name] = Field(rows)
            if name in self._weights:
                message[name] = Mean(rows, self._weights[name])
        ids, finite = np.concatenate(self._ids), torch.cat(self._finite)
        return LocalWork(ids, message, self._state, finite)


def collect_numbers(round: Round) -> None:
    """Gather all clients' numbers on rank 0, and send the diverged ids to all ranks.

    Models are sent in a later stage, because their number depends on these ids.
    """
    done = round.work
    diverged = done.ids[~done.finite.numpy()]
    received_finite = True
    if len(diverged):
        for entry in wrap_entries(round.inbox).values():
            received_finite &= bool(entry.tensor.isfinite().all())
    facts = [
        exchange.make_header(done.upload),
        diverged.tolist(),
        received_finite,
        record.list_names(round.numbers),
        dict(round.stopwatch.seconds),
        round.vote(),
    ]
    prepared, plan = round.prepared, round.plan
    with round.communicator.collective_block():
        facts_by_rank = round.communicator.allgather(facts)
        headers, lost, finite, names, seconds, votes = zip(*facts_by_rank, strict=True)
        all_names = sorted(set(itertools.chain(*names)))
        clients = record.gather(
            communicator=round.communicator,
            placement=prepared.placement,
            audience=np.concatenate([plan.audience, plan.newcomers]),
            clients=len(prepared.data.counts),
            fleets=round.numbers,
            names=all_names,
        )
    scores = prepared.resources.scores
    round.collected = Collected(
        numbers=record.Gathered(all_names, clients, seconds, scores),
        diverged=np.array(sorted(itertools.chain(*lost)), np.int64),
        received_finite=all(finite),
        headers=[exchange.Header(*header) for header in headers],
        vote=max(votes),
    )


def refuse_diverged(round: Round) -> None:
    """Raise Diverged on all ranks if clients diverged and this ends the run."""
    divergence = round.describe_divergence()
    stops = round.prepared.config.training.on_divergence == "stop"
    if not divergence or not stops:
        return
    advice = "correct them and start over with --fresh"
    if round.collected.received_finite:
        advice = (
            "lower training.lr or set training.clip and start over with --fresh, or "
            "exclude such clients with training.on_divergence = 'exclude'"
        )
    raise Diverged(f"{divergence}; {advice}")


def collect_uploads(round: Round) -> None:
    """Gather the messages of the cohort's clients that did not diverge on rank 0."""
    if len(round.cohort):
        round.uploads = exchange.gather(
            communicator=round.communicator,
            placement=round.prepared.placement,
            ids=round.cohort,
            message=round.work.upload,
            headers=round.collected.headers,
        )


def store_state(round: Round) -> None:
    """Store the participants' private state, except for diverged clients."""
    finite, state = round.work.finite, round.work.state
    if not finite.all():  # copy rows only if some are removed
        kept = finite.nonzero()[:, 0]
        state = {name: rows[kept.to(rows.device)] for name, rows in state.items()}
    ids = round.work.ids[finite.numpy()]
    round.prepared.store.put(ids.tolist(), state)


def aggregate(round: Round) -> None:
    """Take the server's step on rank 0.

    There is no step without uploads, unless an overlay acts on empty cohorts.
    """
    uploads = round.uploads
    if uploads is None and round.prepared.hooks.acts_on_empty_cohorts:
        uploads = exchange.make_empty_uplink(round.prepared.findings.upload_kinds)
    if uploads is not None and round.communicator.is_server:
        take_step(round, round.cohort, uploads)


def take_step(round: Round, cohort: np.ndarray, uplink: State) -> None:
    """Call the method's ``aggregate``.

    Args:
        round: round in progress.
        cohort: ids of the clients that uploaded.
        uplink: their messages.

    Raises:
        UserError: A tensor of the server has changed in place since the round began.
    """
    senders = round.prepared.make_cohort(cohort, round.plan.number)
    round.prepared.hooks.aggregate(round.server, senders, uplink)
    round.refuse_changes()


def score_final(round: Round) -> None:
    """Score this rank's clients by the method's ``finish``, after the last round.

    There is no cohort: clients upload nothing, and private state does not change.
    """
    no_ids = round.plan.cohort
    round.work = LocalWork(no_ids, {}, {}, torch.ones(0, dtype=torch.bool))
    for ids in round.group_by_memory(round.plan.audience):
        score(round, ids, round.prepared.method.finish)


def score_newcomers(round: Round) -> None:
    """Send newcomers the method's message for them, and score them. Collective call.

    Their columns have separate names, which excludes them from the means of other
    clients.
    """
    newcomers = round.plan.newcomers
    if not len(newcomers):
        return
    message = round.make_message("send_to_newcomers", newcomers)
    inbox, _ = round.deliver(newcomers, message)
    fleet = round.prepared.make_newcomers()
    if len(fleet.ids):
        with round.lend_inbox(fleet, inbox):
            train_newcomers(round, fleet, inbox)
    columns = {"pre": BEFORE, "post": AFTER}
    scores = {}
    for name, sums in fleet.results.scores.items():
        if name in columns:
            scores[columns[name]] = sums
    fleet.results.scores, fleet.results.recorded = scores, {}
    numbers = fleet.ids, record.compute_numbers(fleet)
    round.numbers.append(numbers)


def train_newcomers(round: Round, fleet: Fleet, inbox: Inbox) -> None:
    """Score newcomers, before and after their training if ``newcomers.epochs`` is set."""
    method, hooks = round.prepared.method, round.prepared.hooks
    *_, arrived = hooks.receive(fleet, inbox)
    method.init_newcomers(fleet, arrived)
    own_inbox = hooks.prepare(fleet, arrived)
    if round.prepared.config.newcomers.epochs:
        method.update(fleet, own_inbox)
    else:
        method.observe(fleet, own_inbox)


# All ranks meet in SEND, COLLECT, UPLOAD and NEWCOMERS. They run these stages in the
# same order.
COMPOSE = Stage("compose", "send", "the server's message", compose)
SEND = Stage("send", "send", "the server's message", send)
WORK = Stage("work", "train", "local work", work)
COLLECT = Stage("collect", "gather", "the clients' numbers", collect_numbers)
REFUSE = Stage("refuse", "gather", "the clients' numbers", refuse_diverged)
UPLOAD = Stage("upload", "gather", "uploads", collect_uploads)
STORE = Stage("store", "store", "the clients' private state", store_state)
AGGREGATE = Stage("aggregate", "aggregate", "aggregation", aggregate)
TRAINING = (COMPOSE, SEND, WORK, COLLECT, REFUSE, UPLOAD, STORE, AGGREGATE)
SCORE = Stage("work", "train", "local work", score_final)
NEWCOMERS = Stage("newcomers", "train", "local work", score_newcomers)
FINAL_SCORING = (COMPOSE, SEND, SCORE, NEWCOMERS, COLLECT)


def conclude(round: Round, times: Mapping[str, Any]) -> Result:
    """Return the result of a round, and reset the stopwatch for the next round.

    Args:
        round: round that has been played.
        times: times of the schedule.
    """
    communicator, plan = round.communicator, round.plan
    sent, received = round.bytes_before
    measured: dict[str, Any] = {
        "bytes_down": communicator.bytes_sent - sent,
        "bytes_up": communicator.bytes_received - received,
        "floats_down": round.floats_down,
    }
    for phase in PHASES:
        measured[f"seconds/{phase}"] = round.stopwatch.seconds[phase]
    measured["seconds/round"] = round.stopwatch.take_lap()
    round.stopwatch.seconds.clear()
    measured |= times
    with on_this_rank(f"{round.name}, metrics"):
        if communicator.is_server and plan.is_scored:
            measured |= measure_clusters(round)
        if communicator.is_server and not plan.is_final:
            taken = [*measured, *round.collected.numbers.names]
            measured |= round.prepared.hooks.measure(round.server, plan.number, taken)
    return Result(
        plan=plan,
        numbers=round.collected.numbers,
        measured=measured,
        divergence=round.describe_divergence(),
    )


def measure_clusters(round: Round) -> dict[str, Any]:
    """Compare groups of clients by their shifts with the clusters of the method.

    Returns:
        Metrics by name; {} without shifts.

    Raises:
        MessageError: The method does not return a cluster for each client.
    """
    shifts = round.prepared.data.shifts
    if shifts is None or not shifts.drawn:
        return {}
    found = round.prepared.method.found_clusters(round.server)
    groups, _ = shifts.group_clients(round.plan.number)
    clusters = None
    if found is not None:
        form, expected = describe_form(found), f"int64 [{round.prepared.setup.clients}]"
        if form != expected:
            raise MessageError("found_clusters", f"{form}; expected {expected}")
        clusters = found.cpu().numpy()
    return record.describe_clusters(groups, shifts.drifts, clusters)
