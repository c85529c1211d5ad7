"""Messages and server state of the first two rounds, from a small federation without
training. ``hpcfl check`` counts their bytes; virtual time needs them as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from hpcfl.clients.fleet import Fleet
from hpcfl.clients.training import Task
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Message
from hpcfl.errors import RankFailure
from hpcfl.methods.base import State
from hpcfl.simulation.dry_round import (
    DRY,
    count_clients,
    is_of_server,
    release_memory,
    shrink,
)
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import Round, RoundPlan
from hpcfl.simulation.stages import Observer, Stage, play


def skip_training(task: Task) -> Task:
    """Return a task without epochs, which needs no memory for gradients."""
    return replace(task, epochs=0)


@dataclass
class Messages:
    """Messages of a round. The method ``note`` is an observer of its stages.

    Attributes:
        clients: number of clients of the small federation.
        server: state of the server after the round.
        sent: message from the server.
        returned: message from the clients.
    """

    clients: int
    server: State
    sent: Message = field(default_factory=dict)
    returned: Message = field(default_factory=dict)

    def note(self, stage: str, round: Round) -> None:
        """Keep the message that a stage has made."""
        if stage == "compose":
            self.sent = round.message
        if stage == "work":
            self.returned = round.work.message


def find_fixed(prepared: Prepared) -> set[str]:
    """Return the names of the server's tensors whose rows do not belong to clients.

    They have as many rows as the small federation has clients, and the same number with
    one client more.
    """
    setup, clients = prepared.setup, count_clients(prepared)
    if clients == setup.clients:
        return set()
    one_more = setup.class_counts[[*range(clients), 0]]
    server = prepared.hooks.make_initial_state(
        "server_state", replace(setup, class_counts=one_more)
    )
    return {name for name, tensor in server.items() if tensor.shape[:1] == (clients,)}


def outline_messages(prepared: Prepared) -> Messages:
    """Return the server's state and messages as tensors without values.

    Each client sends and receives a message of one model.
    """
    model = torch.empty(1, prepared.setup.layout.width, device="meta")
    with torch.device("meta"):
        server = prepared.hooks.make_initial_state("server_state", prepared.setup)
    sent, returned = {"model": model}, {"model": model}
    return Messages(prepared.setup.clients, server, sent, returned)


def record_two_rounds(prepared: Prepared) -> Iterator[Messages]:
    """Yield the messages of two rounds of a small federation without training.

    The second round is the first whose messages depend on messages of clients. It must
    be called on a rank with clients.

    Raises:
        RankFailure: A step before the server's step fails.
    """
    idle_fleet = partial(Fleet, adjust=skip_training)
    small = replace(shrink(prepared, most_lanes=1), fleet_type=idle_fleet)
    server = small.hooks.make_initial_state("server_state", small.setup)
    client = np.array([0])
    for number in (1, 2):
        plan = RoundPlan(number, client, client, is_scored=False)
        round = Round(plan, OneProcess(), small, server)
        messages = Messages(small.setup.clients, server)
        play_on_clients(round, DRY, [messages.note, release_memory])
        yield messages


def play_on_clients(
    round: Round, stages: Sequence[Stage], observers: Sequence[Observer]
) -> None:
    """Play a round of a small federation, and ignore errors in the server's step.

    All messages are equal, and a server's step may not accept such input.

    Args:
        round: round to play.
        stages: stages of the round.
        observers: functions called after each stage.

    Raises:
        RankFailure: A step before the server's step fails.
    """
    try:
        play(round, stages, observers)
    except RankFailure as failure:
        if not is_of_server(failure.__cause__, round.prepared.hooks):
            raise
