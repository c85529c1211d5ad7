"""A round and the final scoring of a small federation in this process.

One client with two samples takes part and another one is scored. Where the server
aggregates, the message of the first one stands for those of all clients. Model, loss,
kernel, messages and the round itself are the real ones.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from hpcfl.clients.execution import choose
from hpcfl.clients.fleet import BUFFERS, Fleet
from hpcfl.clients.resources import Resources, Stopwatch, make_head_kernel
from hpcfl.clients.training import Task
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.exchange import Placement
from hpcfl.communication.message import Mean, Message
from hpcfl.errors import RankFailure, RunFailure, is_shortage
from hpcfl.files import heartbeat
from hpcfl.methods.base import State
from hpcfl.rows import mixing
from hpcfl.simulation.hooks import Hooks, find_called_hook
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import (
    COLLECT,
    COMPOSE,
    SEND,
    STORE,
    UPLOAD,
    WORK,
    Round,
    take_step,
)
from hpcfl.simulation.stages import Observer, RoundPlan, Stage, play
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


class EnoughHeartbeats(Exception):
    """Exception that ends a long server step early, after it has run without error."""


def train_briefly(task: Task) -> Task:
    """Return a training of at most one epoch."""
    return replace(task, epochs=min(task.epochs, 1))


def skip_training(task: Task) -> Task:
    """Return a training of no epoch, whose results have the same shapes."""
    return replace(task, epochs=0)


brief_fleet = partial(Fleet, adjust=train_briefly)
idle_fleet = partial(Fleet, adjust=skip_training)


def repeat_uploads(round: Round) -> None:
    """Repeat the one client's message for all clients."""
    if round.uploads is None:
        return
    clients = round.prepared.setup.clients
    for name, rows in round.uploads.items():
        if not isinstance(round.work.message[name], Mean):
            round.uploads[name] = rows.repeat(clients, 1)


def aggregate_briefly(round: Round) -> None:
    """Run the server step for all clients; end a long step early."""
    if round.uploads is None:
        return
    everyone = np.arange(round.prepared.setup.clients)
    with heartbeat.use_listener(limit_heartbeats()):
        take_step(round, everyone, round.uploads)


REPEAT = Stage("repeat", "gather", "uploads", repeat_uploads)
AGGREGATE_BRIEFLY = Stage("aggregate", "aggregate", "aggregation", aggregate_briefly)
# Diverged clients are left to the real rounds.
AFTER_WORK = (COLLECT, UPLOAD, REPEAT, STORE, AGGREGATE_BRIEFLY)
DRY = (COMPOSE, SEND, WORK, *AFTER_WORK)


@dataclass
class Messages:
    """The messages of a round; ``note`` is an observer of its stages.

    Attributes:
        clients: how many the small federation has.
        server: the server's state after the round.
        sent: by the server.
        returned: by the clients.
    """

    clients: int
    server: State
    sent: Message = field(default_factory=dict)
    returned: Message = field(default_factory=dict)

    def note(self, stage: str, round: Round) -> None:
        """Keep the message that a stage made."""
        if stage == "compose":
            self.sent = round.message
        if stage == "work":
            self.returned = round.work.message


def record_two_rounds(prepared: Prepared) -> Iterator[Messages]:
    """Yield the messages of the first two rounds of a small federation, in which nothing
    is trained.

    The second is the first whose messages build on those of clients. To be called on a
    rank that hosts clients. Raises RankFailure where something before the server's step
    cannot run.
    """
    small = replace(shrink(prepared, lanes=1), fleet_type=idle_fleet)
    server = small.hooks.initial_state("server_state", small.setup)
    for number in (1, 2):
        plan = RoundPlan(
            number, np.array([0]), np.array(small.store.ids), is_scored=True
        )
        round = Round(plan, OneProcess(), small, server)
        messages = Messages(small.setup.clients, server)
        play_on_clients(round, DRY, [messages.note])
        yield messages


def play_on_clients(
    round: Round, stages: Sequence[Stage], observers: Sequence[Observer]
) -> None:
    """Play a round of a small federation, and ignore a failure of the server's step.

    All messages are equal, and a server step may not accept such input.

    Raises RankFailure where something before that step cannot run.
    """
    try:
        play(round, stages, observers)
    except RankFailure as failure:
        if not is_of_server(failure.__cause__, round.prepared.hooks):
            raise


def is_of_server(error: BaseException | None, hooks: Hooks) -> bool:
    """Return whether a hook of the server, of the method or of an overlay, raised an
    error that is no failure of the machine.
    """
    if error is None or isinstance(error, RunFailure) or is_shortage(error):
        return False
    _, _, hook = find_called_hook(error, hooks).rpartition(".")
    return hook in SERVER_HOOKS


def limit_heartbeats() -> Callable[[], None]:
    """Return a listener to heartbeats that raises EnoughHeartbeats after HEARTBEATS of them."""
    numbers = itertools.count(1)

    def listen() -> None:
        if next(numbers) > HEARTBEATS:
            raise EnoughHeartbeats

    return listen


def shrink(prepared: Prepared, lanes: int, samples: int = SAMPLES) -> Prepared:
    """Return the experiment with a few samples and one epoch for each client, and with
    its own kernel and stores.
    """
    mixing.large_memory().release()  # of an earlier small federation
    resources = prepared.resources
    affordable = max(MIN_CLIENTS, FLOATS // prepared.setup.layout.width)
    clients = min(prepared.setup.clients, affordable)
    newcomers = [clients] if prepared.config.newcomers.clients else []
    # One client trains; another one, where there are several, is scored beside it.
    taking_part = list(range(min(clients, 2)))
    pool = np.arange(min(samples, len(resources.samples.y)))
    dealt = resources.samples.dealt(dict.fromkeys([*taking_part, *newcomers], pool))
    counts = dealt.counts(0).repeat(clients + len(newcomers), 1)
    setup = replace(prepared.setup, class_counts=counts[:clients])
    device = resources.device
    module = setup.build().to(device)
    private = prepared.hooks.initial_state("client_state", setup)
    for name, row in prepared.store.template.items():
        if name.startswith(BUFFERS):
            private[name] = row
    small_resources = Resources(
        setup=setup,
        samples=dealt,
        kernel=choose(
            module,
            device,
            lanes,
            replay=False,
            of_samples=resources.privacy is not None,
            form=resources.kernel.form,
        ),
        buffers=resources.buffers,
        device=device,
        stopwatch=Stopwatch(),
        scores=resources.scores,
        head=make_head_kernel(module, device, lanes, False, memory=math.inf),
        privacy=resources.privacy and resources.privacy.without_noise(),
    )
    return replace(
        prepared,
        data=replace(prepared.data, counts=counts, shifts=None),
        setup=setup,
        resources=small_resources,
        store=ClientStore(taking_part, private),
        newcomers=ClientStore(newcomers, private),
        placement=Placement(np.zeros(len(counts), np.int64), 1),
        fleet_type=brief_fleet,
    )
