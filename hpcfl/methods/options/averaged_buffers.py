"""Batch-norm statistics that are averaged like the model: ``training.buffers =
"average"``.

FedNH's and FedUV's codes average a model's whole state like this. PFLlib and its family
average parameters only, and so does the default, ``"local"``: the statistics stay with
each client.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.methods.base import Audience, Cohort, Method, Setup, State
from hpcfl.rows.declared import NamedTensors


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
        """What the method has under this name.

        Its hooks are told apart by their parameters: one that gets an ``audience`` makes
        a message, to which the server's averages are added; one that gets an ``inbox``
        gets its own part of it, after the averages have become the clients' buffers.
        """
        attribute = getattr(self.method, name)
        if not inspect.ismethod(attribute):
            return attribute
        parameters = inspect.signature(attribute).parameters
        if "audience" in parameters:
            return functools.partial(self._sent, attribute)
        if "inbox" in parameters:
            return functools.partial(self._opened, attribute)
        return attribute

    def server_state(self, setup: Setup) -> State:
        buffers = {name: row.clone() for name, row in self.initial.items()}
        return {**self.method.server_state(setup), **buffers}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        message = self._opened(self.method.update, fleet, inbox)
        shares = self.method.shares(fleet)
        means = {name: Mean(fleet.state[name], shares) for name in self.initial}
        return {**message, **means}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        for name in self.initial:
            server[name] = uplink[name]
        self.method.aggregate(server, cohort, self._without_buffers(uplink, "uplink"))

    def _sent(
        self, hook: Callable[..., Message], server: State, audience: Audience
    ) -> Message:
        """The message that the method's ``hook`` makes, and the averaged buffers."""
        buffers = {name: server[name] for name in self.initial}
        return {**hook(server, audience), **buffers}

    def _opened(
        self, hook: Callable[..., Any], fleet: Fleet, inbox: Inbox, *rest: Any
    ) -> Any:
        """What the method's ``hook`` returns, once the received buffers have become the
        clients'.
        """
        for name in self.initial:
            averaged = self.averaged.to(inbox[name].device)
            received = torch.where(averaged, inbox[name], fleet.state[name])
            fleet.state[name] = received
        return hook(fleet, self._without_buffers(inbox, "inbox"), *rest)

    def _without_buffers(self, arrived: Mapping[str, Any], place: str) -> Any:
        """Return the method's own part of a message that arrived."""
        own = {
            name: value for name, value in arrived.items() if name not in self.initial
        }
        return NamedTensors(own, place)
