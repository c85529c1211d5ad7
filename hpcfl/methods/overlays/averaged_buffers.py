"""Batch-norm statistics that are averaged like the model: ``training.buffers =
"average"``.

FedNH's and FedUV's codes average a model's whole state like this. PFLlib and its family
average parameters only, and so does the default, ``"local"``: the statistics stay with
each client.
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
    """Buffers that go up beside the method's message, are averaged, and come down.

    Attributes:
        name: of the buffers in the clients' private state and in the server's state.
        initial: the buffers before round 1, [width].
        averaged: bool [width], False for counters, which stay with the client.
        shares: the method's function of this name, the weights of the average.
        sends_counters: whether clients upload their counters, and not the received ones,
            which would take up a clip of updates.
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
