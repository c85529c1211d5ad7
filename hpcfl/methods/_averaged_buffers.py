"""Batch-norm statistics that are averaged like the model: ``training.buffers =
"average"``.

FedNH's and FedUV's codes average a model's whole state like this. PFLlib and its family
average parameters only, and so does the default, ``"local"``: the statistics stay with
each client.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.fleet import Fleet
from hpcfl.methods.base import Audience, Cohort, Method, Setup, State


@dataclass(frozen=True)
class AveragedBuffers:
    """A wrapped ``method``: its buffers go up beside what it sends, are averaged with
    its weights, come down.

    initial: the buffers before round 1, [width] each, by their name in the clients'
    private state, under which the server keeps the averages. averaged: bool [width],
    False for counters, which stay with the client.
    """

    method: Method
    initial: State
    averaged: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def server_state(self, setup: Setup) -> State:
        return {
            **self.method.server_state(setup),
            **{name: row.clone() for name, row in self.initial.items()},
        }

    def send(self, server: State, audience: Audience) -> Message:
        return {
            **self.method.send(server, audience),
            **{name: server[name] for name in self.initial},
        }

    def greet(self, server: State, audience: Audience) -> Message:
        return {
            **self.method.greet(server, audience),
            **{name: server[name] for name in self.initial},
        }

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        message = self.method.update(fleet, self._unpacked(fleet, inbox))
        shares = self.method.shares(fleet)
        return {
            **message,
            **{name: Mean(fleet.state[name], shares) for name in self.initial},
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        for name in self.initial:
            server[name] = uplink[name]
        self.method.aggregate(
            server,
            cohort,
            {name: rows for name, rows in uplink.items() if name not in self.initial},
        )

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        self.method.observe(fleet, self._unpacked(fleet, inbox))

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        self.method.finish(fleet, self._unpacked(fleet, inbox))

    def join(self, fleet: Fleet, inbox: Inbox) -> None:
        self.method.join(fleet, self._unpacked(fleet, inbox))

    def inherit(self, fleet: Fleet, inbox: Inbox) -> None:
        self.method.inherit(fleet, self._unpacked(fleet, inbox))

    def _unpacked(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """The method's own part of the inbox, after the received buffers have become
        the clients'.
        """
        for name in self.initial:
            fleet.state[name] = torch.where(
                self.averaged.to(inbox[name].device), inbox[name], fleet.state[name]
            )
        return {
            name: value for name, value in inbox.items() if name not in self.initial
        }
