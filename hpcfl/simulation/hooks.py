"""Calls of a method's hooks, with the overlays around its messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Message
from hpcfl.methods.base import Audience, Cohort, Method, Overlay, Setup, State
from hpcfl.rows.declared import (
    DeclaredTensors,
    FixedTensors,
    NamedTensors,
    refuse_other_than_tensors,
)
from hpcfl.simulation.message_check import checked

if TYPE_CHECKING:
    from hpcfl.simulation.prepare import Prepared


def initial_state(
    hook: str, method: Method, overlays: Sequence[Overlay], setup: Setup
) -> State:
    """Return the state before round 1 that a hook of the method and of its overlays
    declares: ``server_state`` or ``client_state``.

    Raises UserError where the method declares other than tensors.
    """
    own: State = getattr(method, hook)(setup)
    refuse_other_than_tensors(own, hook)
    state = dict(own)
    for overlay in overlays:
        state |= getattr(overlay, hook)(setup)
    return state


def server_state(prepared: "Prepared") -> State:
    """Return the server's state before round 1."""
    method, overlays = prepared.method, prepared.overlays
    return initial_state("server_state", method, overlays, prepared.setup)


def compose(
    prepared: "Prepared", hook: str, state: State, audience: Audience
) -> Message:
    """Return the message to an audience that a hook of the method makes, on rank 0."""
    server: Any = FixedTensors(state, "server")
    clients = len(audience.ids)
    returned = getattr(prepared.method, hook)(server, audience)
    message = checked(hook, returned, clients, downwards=True)
    for overlay in prepared.overlays:
        returned = overlay.send(server, audience, message)
        message = checked(_name(overlay.send), returned, clients, downwards=True)
    return message


def received(prepared: "Prepared", fleet: Fleet, inbox: Inbox) -> list[Inbox]:
    """Return the inbox of a fleet as each overlay receives it, the outermost first, and
    as the method receives it.
    """
    inboxes = [inbox]
    for overlay in reversed(prepared.overlays):
        inboxes.append(overlay.receive(fleet, inboxes[-1]))
    own: Any = NamedTensors(inboxes[-1], "inbox")
    return [*inboxes[:-1], own]


def receive(prepared: "Prepared", fleet: Fleet, inbox: Inbox) -> Inbox:
    """Return the inbox of a fleet as the method receives it."""
    return received(prepared, fleet, inbox)[-1]


def update(prepared: "Prepared", fleet: Fleet, inbox: Inbox) -> Message:
    """Return the message that the clients of a fleet send after their round."""
    clients = len(fleet.ids)
    inboxes = received(prepared, fleet, inbox)
    returned = prepared.method.update(fleet, inboxes.pop())
    message = checked("update", returned, clients, downwards=False)
    for overlay in prepared.overlays:
        returned = overlay.upload(fleet, inboxes.pop(), message)
        message = checked(_name(overlay.upload), returned, clients, downwards=False)
    return message


def aggregate(
    prepared: "Prepared", state: State, cohort: Cohort, uplink: State
) -> None:
    """Let the method aggregate an uplink; change ``state``. Runs on rank 0."""
    method = prepared.method
    varying = set(method.varying)
    for overlay in prepared.overlays:
        varying |= set(overlay.varying)
    server: Any = DeclaredTensors(state, "server", "server_state", varying)
    for overlay in reversed(prepared.overlays):
        uplink = overlay.aggregate(server, cohort, uplink)
    named: Any = NamedTensors(uplink, "uplink")
    method.aggregate(server, cohort, named)
    state.update(server)


def _name(step: Any) -> str:
    """Return the name of an overlay's step, for messages."""
    name: str = step.__qualname__
    return name
