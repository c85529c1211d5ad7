"""A round and the final scoring of a small federation in this process.

One client with two samples takes part and another one is scored. Where the server
aggregates, the message of the first one stands for those of all clients. Model, loss,
kernel, messages and the round itself are the real ones.
"""

import itertools
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import BUFFERS, Fleet, Resources, TrainOptions
from hpcfl.clients.batch_plan import AskedTraining
from hpcfl.clients.execution import choose
from hpcfl.clients.frozen import head_kernel
from hpcfl.clients.resources import Stopwatch
from hpcfl.clients.training import Task, Trained
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.communication.placement import Placement
from hpcfl.errors import RankFailure, RunFailure, UserError, is_shortage
from hpcfl.files import heartbeat
from hpcfl.methods.base import Method, State
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation.message_check import MessageError
from hpcfl.simulation.participation import RoundPlan
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import FinalScoring, LocalWork, Reports, Round
from hpcfl.simulation.stages import on_this_rank
from hpcfl.storage.clients import ClientStore

SAMPLES = 2  # of each client
# The most floats in the models of all clients: of large models there are fewer clients
# than in the experiment, but at least MIN_CLIENTS.
FLOATS = 1 << 24
MIN_CLIENTS = 2
SERVER_HOOKS = (
    "server_state",
    "send",
    "aggregate",
    "send_to_newcomers",
)  # hooks that run on rank 0
HEARTBEATS = 10  # of the server's step, after which it counts as working


class Enough(Exception):
    """Ends a long step of the server, which has worked so far."""


# What may fail in them and is no mistake: here all clients' messages are equal, which
# may be too odd for a method. torch documents LinAlgError in this place, but its
# annotations do not count it as public.
EXCUSED = (
    ValueError,
    ArithmeticError,
    AssertionError,
    Enough,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)


@dataclass
class BriefFleet(Fleet):
    """A fleet that trains for one epoch at most.

    asked: the trainings that the method asks for, without those of a trial.
    """

    asked: list[AskedTraining] = field(default_factory=list)

    def _epochs(self, epochs: int | None) -> int:
        return min(super()._epochs(epochs), 1)

    def _play(self, task: Task, rows: Tensor, options: TrainOptions) -> Trained:
        asked = AskedTraining(task.epochs, task.batches, task.steps, task.share)
        self.asked.append(asked)
        return super()._play(task, rows, options)

    @contextmanager
    def trial(self) -> Iterator[None]:
        asked, self.asked = self.asked, []
        with super().trial():
            yield
        self.asked = asked


@dataclass(frozen=True)
class Tried:
    """What a dry round shows.

    Attributes:
        dependent: operators that were called and give a lane bits that depend on the
            lanes beside it.
        trainings: the local trainings that the method asks for in a round.
    """

    dependent: frozenset[str] = frozenset()
    trainings: tuple[AskedTraining, ...] = ()


class DryRound(Round):
    """A round in which the one client's message stands for those of all clients."""

    def refuse_diverged(self, reports: Reports) -> None:
        """Whether clients diverge is for the real rounds to say."""

    def collect_uploads(
        self, cohort: np.ndarray, work: LocalWork, reports: Reports
    ) -> State | None:
        uploads = super().collect_uploads(cohort, work, reports)
        if uploads is None:
            return None
        clients = self.prepared.setup.clients
        for name, rows in uploads.items():
            if not isinstance(work.message[name], Mean):
                uploads[name] = rows.repeat(clients, 1)
        return uploads

    def aggregate(self, cohort: np.ndarray, uploads: State | None) -> None:
        everyone = np.arange(self.prepared.setup.clients)
        with heartbeat.heard_by(impatient()):
            super().aggregate(everyone, uploads)


class WatchedRound(DryRound):
    """A dry round that keeps the messages that travelled."""

    sent: Message = MappingProxyType({})
    returned: Message = MappingProxyType({})

    def message(self, hook: str, ids: np.ndarray) -> Message:
        self.sent = super().message(hook, ids)
        return self.sent

    def work(self, inbox: Inbox) -> LocalWork:
        work = super().work(inbox)
        self.returned = work.message
        return work


def watch(prepared: Prepared) -> WatchedRound:
    """The second round of a small federation, the first whose messages build on those
    of clients, with the server's state after it; as ``watch_two``.
    """
    _, second = watch_two(prepared)
    return second


def watch_two(prepared: Prepared) -> list[WatchedRound]:
    """The first two rounds of a small federation.

    To be called on a rank that hosts clients. Raises RankFailure where something before
    the server's step cannot run.
    """
    small = shrink(prepared, lanes=1)
    server = small.method.server_state(small.setup)
    rounds = []
    for number in (1, 2):
        plan = RoundPlan(number, np.array([0]), np.array(small.store.ids), scored=True)
        round = WatchedRound(plan, OneProcess(), small, server, BriefFleet)
        play_on_clients(round)
        rounds.append(round)
    return rounds


def play_on_clients(round: Round) -> None:
    """Play a round of a small federation in which all messages are equal: that may be
    too odd for the server's step, which then may fail.

    Raises RankFailure where something before that step cannot run.
    """
    try:
        round.play()
    except RankFailure as failure:
        if not _is_of_server(failure.__cause__):
            raise


def _is_of_server(error: BaseException | None) -> bool:
    """Return whether a hook of the server raised an error that is no failure of the
    machine.
    """
    is_failure = isinstance(error, RunFailure) or is_shortage(error)
    return hook_of(error) in SERVER_HOOKS and not is_failure


def impatient() -> Callable[[], None]:
    """What listens to heartbeats and raises Enough after HEARTBEATS of them."""
    numbers = itertools.count(1)

    def listen() -> None:
        if next(numbers) > HEARTBEATS:
            raise Enough

    return listen


def play(prepared: Prepared, lanes: int) -> Tried:
    """Play the round and the final scoring with at most ``lanes`` lanes.

    What may fail on the server only because the federation is small is passed over.

    Raises:
        RankFailure: something cannot run; its cause says what.
    """
    with on_this_rank("before round 1"):
        small = shrink(prepared, lanes)
    asked: list[AskedTraining] = []
    try:
        _play(small, asked)
    except RankFailure as failure:
        cause = failure.__cause__
        fewer = small.setup.clients < prepared.setup.clients
        excused = fewer or isinstance(cause, EXCUSED)
        if isinstance(cause, UnknownName) or not excused:
            raise
        if not _is_of_server(cause):
            raise
    head = small.resources.head
    dependent = set(small.resources.kernel.dependent)
    if head:
        dependent |= head.kernel.dependent
    return Tried(frozenset(dependent), tuple(dict.fromkeys(asked)))


def _play(small: Prepared, asked: list[AskedTraining]) -> None:
    """Play a round of a small federation, and its final scoring; add to ``asked`` the
    trainings of the round.
    """
    alone, rounds = OneProcess(), small.config.rounds
    with on_this_rank("before round 1"):
        server = small.method.server_state(small.setup)
    trained = np.array([0])
    scored = np.array(small.store.ids)
    first = RoundPlan(1, trained, scored, scored=True)
    fleet_type = partial(BriefFleet, asked=asked)
    result = DryRound(first, alone, small, server, fleet_type).play()
    with on_this_rank("round 1"):
        check_score(small, result.numbers.columns)
    newcomers = small.newcomer_ids
    last = RoundPlan(rounds + 1, trained[:0], trained, scored=True, newcomers=newcomers)
    FinalScoring(last, alone, small, server, BriefFleet).play()


def shrink(prepared: Prepared, lanes: int, samples: int = SAMPLES) -> Prepared:
    """The experiment with clients of so many samples, and a kernel and stores of its own."""
    resources, method = prepared.resources, prepared.method
    affordable = max(MIN_CLIENTS, FLOATS // prepared.setup.layout.width)
    clients = min(prepared.setup.clients, affordable)
    newcomers = [clients] if prepared.config.newcomers.clients else []
    # One client trains; another one, where there are several, is scored beside it.
    taking_part = list(range(min(clients, 2)))
    pool = np.arange(min(samples, len(resources.samples.y)))
    dealt = resources.samples.dealt(dict.fromkeys([*taking_part, *newcomers], pool))
    counts = dealt.counts(0).repeat(clients + len(newcomers), 1)
    setup = replace(prepared.setup, counts=counts[:clients])
    device = resources.device
    module = setup.build().to(device)
    private = method.client_state(setup)
    for name, row in prepared.store.template.items():
        if name.startswith(BUFFERS):
            private[name] = row
    small_resources = Resources(
        setup,
        dealt,
        choose(module, device, lanes, replay=False),
        resources.buffers,
        device,
        Stopwatch(),
        resources.scores,
        head=head_kernel(module, device, lanes, False, memory=math.inf),
    )
    return replace(
        prepared,
        setup=setup,
        counts=counts,
        resources=small_resources,
        store=ClientStore(taking_part, private),
        newcomers=ClientStore(newcomers, private),
        placement=Placement(np.zeros(len(counts), np.int64), 1),
        shifts=None,
    )


def check_score(small: Prepared, columns: list[str]) -> None:
    """Raise UserError if ``evaluation.score`` is none of the ``columns`` that a round
    records.

    The method's own may be recorded at the end only.
    """
    wanted, method = small.config.evaluation.score, small.method
    if wanted not in {"method", method.primary, *columns}:
        recorded = ", ".join(sorted(columns))
        raise UserError(
            f"evaluation.score = '{wanted}': {method.name} records {recorded}; "
            f"'method' takes its own, {method.primary}"
        )


def hook_of(error: BaseException | None) -> str:
    """The hook of the method in which an exception was raised; "" where it was in none."""
    if error is None:
        return ""
    if isinstance(error, MessageError):
        return error.hook
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # The outermost one is the hook that the round called.
        if isinstance(frame.f_locals.get("self"), Method):
            return frame.f_code.co_name
    return ""
