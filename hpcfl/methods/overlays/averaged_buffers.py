"""Averaged batch-norm statistics: ``training.buffers = "average"``.

The published codes of FedNH and FedUV average the complete state of a model in this
way. PFLlib and codes derived from it average only parameters. So does the default
``"local"``, with which each client keeps its statistics.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Overlay,
    Setup,
    State,
)


@dataclass(frozen=True)
class AveragedBuffers(Overlay):
    """Overlay that adds buffers to the messages and averages them on the server.

    Attributes:
        name: Name of the buffers in the clients' private state and in the server's
            state.
        initial: Buffers before round 1, [width].
        averaged: Mask of the averaged buffers, bool [width]; False for counters, which
            stay with the client.
        shares: The method's function ``shares``, which returns the weights of the
            average.
        sends_counters: Whether clients upload their own counters. Otherwise they upload
            the received counters, so that counters do not contribute to the norm of an
            update that is clipped.
    """

    name: str
    initial: Tensor
    averaged: Tensor
    shares: Callable[[Fleet], Tensor]
    sends_counters: bool = True

    def server_state(self, setup: Setup) -> State:
        return {self.name: self.initial.clone()}

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        return {**message, self.name: server[self.name]}

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Assign the received averages to the clients' buffers."""
        received = inbox[self.name]
        averaged = self.averaged.to(received.device)
        own = fleet.state[self.name]
        fleet.state[self.name] = torch.where(averaged, received, own)
        return self._without_buffers(inbox)

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        rows = fleet.state[self.name]
        if not self.sends_counters:
            averaged = self.averaged.to(rows.device)
            rows = torch.where(averaged, rows, inbox[self.name])
        mean = Mean(rows, self.shares(fleet))
        return {**message, self.name: mean}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State:
        server[self.name] = uplink[self.name]
        return self._without_buffers(uplink)

    def _without_buffers(self, arrived: Inbox) -> Inbox:
        return {name: value for name, value in arrived.items() if name != self.name}
