"""Workload of a client, counted in a round of a small federation.

It consists of operations, in units of ordinary passes over the samples, and transmitted
floats. Counting them means that methods need not declare their cost. Operations are
those of matrix products and convolutions, as torch counts them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from hpcfl.clients.fleet import Fleet
from hpcfl.clients.losses import CROSS_ENTROPY
from hpcfl.clock.durations import Work
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Message, wrap_entries
from hpcfl.errors import UserError
from hpcfl.simulation.dry_round import AFTER_WORK, shrink
from hpcfl.simulation.message_trial import Messages, play_on_clients
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import Round, RoundPlan
from hpcfl.simulation.stages import COMPOSE, SEND, Stage, work

# samples of the training client, enough for methods that divide a mini-batch by 2 or 3
SAMPLES = 6
OPERATIONS = 1e6  # operations of the median device per millisecond: 1 GFLOP/s


@dataclass(frozen=True)
class Workload:
    """Workload of a client in a round.

    Attributes:
        work: work of the client.
        sample_ms: milliseconds of the median device for one sample in one pass.
    """

    work: Work
    sample_ms: float


def count_operations(action: Callable[[], Any]) -> tuple[Any, int]:
    """Call a function; return its result and its number of floating-point operations."""
    with FlopCounterMode(display=False) as counter:
        returned = action()
    return returned, int(counter.get_total_flops())


def count_workload(prepared: Prepared) -> Workload:
    """Return a client's workload in the second round, the first with messages from
    clients.

    Only ranks with clients may call it. Raises UserError if ``time.sample_ms`` is
    needed.
    """
    small = shrink(prepared, most_lanes=1, samples=SAMPLES)
    epochs = prepared.config.training.epochs
    messages, operations = _play_second(small)
    pass_operations = _count_operations_of_pass(small)
    sample_ms = prepared.config.time.sample_ms
    if not pass_operations and sample_ms is None:
        raise UserError(
            f"time.sample_ms: the operations of model.name = "
            f"'{prepared.config.model.name}' cannot be counted; set it to the milliseconds in which a "
            "device trains on one sample"
        )
    passes = Fraction(epochs)
    if pass_operations:
        passes = Fraction(operations, pass_operations)
    floats_up = _count_floats(messages.returned)
    if prepared.config.participation.by_losses:
        floats_up += 1
    work = Work(passes, epochs, _count_floats(messages.sent), floats_up)
    return Workload(work, sample_ms or pass_operations / SAMPLES / OPERATIONS)


def _play_second(small: Prepared) -> tuple[Messages, int]:
    """Return the messages of the second round of a small federation, and the operations
    of client 0, which trains all epochs of the experiment.
    """
    server = small.hooks.make_initial_state("server_state", small.setup)
    client = np.array([0])
    operations = 0

    def count_work(round: Round) -> None:
        nonlocal operations
        _, operations = count_operations(lambda: work(round))

    counting = Stage("work", "train", "local work", count_work)
    stages = (COMPOSE, SEND, counting, *AFTER_WORK)
    for number, played in ((1, small), (2, replace(small, fleet_type=Fleet))):
        plan = RoundPlan(number, client, client, is_scored=False)
        round = Round(plan, OneProcess(), played, server)
        messages = Messages(small.setup.clients, server)
        play_on_clients(round, stages, [messages.note])
    return messages, operations


def _count_operations_of_pass(small: Prepared) -> int:
    """Return the number of operations of an ordinary pass over client 0's samples."""
    fleet = small.make_fleet(np.array([0]), 1, False)
    start = small.setup.initial()
    _, operations = count_operations(
        lambda: fleet.train(start, loss=CROSS_ENTROPY, epochs=1, phase="one pass")
    )
    return operations


def _count_floats(message: Message) -> Fraction:
    """Return the number of floats that client 0 receives or sends."""
    total = Fraction(0)
    for entry in wrap_entries(message).values():
        floats = torch.as_tensor(entry.count_floats(), dtype=torch.float64)
        total += Fraction(float(floats.flatten()[0]))
    return total
