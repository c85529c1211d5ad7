"""Calls of a method's hooks, with the overlays around its messages."""

import inspect
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Mean, Message, fields
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.methods.base import Audience, Cohort, Method, Overlay, Setup, State
from hpcfl.rows.declared import (
    DeclaredTensors,
    FixedTensors,
    NamedTensors,
    refuse_other_than_tensors,
)


class MessageError(TypeError):
    """A hook of the method returned what cannot travel. hook: its name."""

    def __init__(self, hook: str, text: str) -> None:
        super().__init__(f"'{hook}' returns {text}")
        self.hook = hook


def check_message(hook: str, message: Any, clients: int, downwards: bool) -> Message:
    """Return the message to or from ``clients`` clients that a hook returned.

    downwards: whether the server sends it. Raises MessageError where it cannot travel.
    """
    if not isinstance(message, Mapping):
        kind = type(message).__name__
        raise MessageError(hook, f"a {kind}; expected a dictionary of tensors by name")
    try:
        entries = fields(message)
    except ValueError as error:
        raise MessageError(hook, f"what cannot travel: {error}") from None
    for name, entry in entries.items():
        if downwards and isinstance(entry, Mean):
            raise MessageError(hook, f"'{name}' as a Mean, which is what clients send")
        if downwards and entry.shared:
            continue
        if entry.shared or len(entry.tensor) != clients:
            shape = list(entry.tensor.shape)
            raise MessageError(
                hook,
                f"'{name}' of shape {shape}; expected a row for each client, here "
                f"[{clients}, width]",
            )
    return message


@dataclass(frozen=True)
class Hooks:
    """The hooks of a method that make, take or declare something that overlays change.

    overlays: the innermost first.
    """

    method: Method
    overlays: tuple[Overlay, ...]

    def initial_state(self, hook: str, setup: Setup) -> State:
        """Return the state before round 1 that a hook of the method and of the overlays
        declares: ``server_state`` or ``client_state``.

        Raises UserError for other than tensors, and for a name that two of them declare.
        """
        state: State = {}
        for owner in (self.method, *self.overlays):
            declare = getattr(owner, hook)
            own: State = declare(setup)
            with user_code.locate_definition(declare):
                refuse_other_than_tensors(own, hook)
            if taken := sorted(state.keys() & own.keys()):
                raise UserError(
                    f"{type(owner).__name__}.{hook}: another overlay or the method has "
                    f"the name '{taken[0]}'; choose another one"
                )
            state |= own
        return state

    def compose(self, hook: str, state: State, audience: Audience) -> Message:
        """Return the message to an audience that a hook of the method makes, on rank
        0.
        """
        server: Any = FixedTensors(state, "server")
        clients = len(audience.ids)
        returned = getattr(self.method, hook)(server, audience)
        message = check_message(hook, returned, clients, downwards=True)
        for overlay in self.overlays:
            returned = overlay.send(server, audience, message)
            name = f"{type(overlay).__name__}.send"
            message = check_message(name, returned, clients, downwards=True)
        return message

    def receive(self, fleet: Fleet, inbox: Inbox) -> list[Inbox]:
        """Return the inbox of a fleet as each overlay receives it, the outermost first,
        and last as the method receives it.
        """
        inboxes = [inbox]
        for overlay in reversed(self.overlays):
            inboxes.append(overlay.receive(fleet, inboxes[-1]))
        own: Any = NamedTensors(inboxes[-1], "inbox")
        return [*inboxes[:-1], own]

    def upload(self, fleet: Fleet, received: list[Inbox], returned: Message) -> Message:
        """Return the message that the clients of a fleet send.

        Args:
            received: The result of ``receive``.
            returned: The result of the method's ``update``.
        """
        clients = len(fleet.ids)
        message = check_message("update", returned, clients, downwards=False)
        of_overlays = reversed(received[:-1])
        for overlay, inbox in zip(self.overlays, of_overlays, strict=True):
            returned = overlay.upload(fleet, inbox, message)
            name = f"{type(overlay).__name__}.upload"
            message = check_message(name, returned, clients, downwards=False)
        return message

    def aggregate(self, state: State, cohort: Cohort, uplink: State) -> None:
        """Let the method aggregate an uplink; change ``state``. Runs on rank 0."""
        varying = set(self.method.varying)
        for overlay in self.overlays:
            varying |= set(overlay.varying)
        server: Any = DeclaredTensors(state, "server", "server_state", varying)
        arrived: State | None = uplink
        for overlay in reversed(self.overlays):
            if arrived is not None:
                arrived = overlay.aggregate(server, cohort, arrived)
        for overlay in reversed(self.overlays):
            cohort = overlay.show_cohort(cohort)
        if arrived is not None:
            own: Any = NamedTensors(arrived, "uplink")
            self.method.aggregate(server, cohort, own)
        state.update(server)

    @property
    def act_on_empty_cohorts(self) -> bool:
        """Return whether the server takes its step in a round without uploads."""
        return any(overlay.acts_on_empty_cohorts() for overlay in self.overlays)

    def notes(self, setup: Setup) -> list[str]:
        """Return lines of the method and of the overlays for the user to read before
        round 1.
        """
        lines = self.method.notes(setup)
        for overlay in self.overlays:
            lines = [*lines, *overlay.notes()]
        return lines

    def measure(self, state: State, round: int) -> dict[str, float]:
        """Return the overlays' numbers of a round to record. Runs on rank 0."""
        numbers: dict[str, float] = {}
        for overlay in self.overlays:
            numbers |= overlay.measure(state, round)
        return numbers


def find_hooks(error: BaseException, hooks: Hooks) -> Iterator[tuple[str, str]]:
    """Yield the functions of a method and of overlays in which an error was raised, the
    outermost first: their names and files. The name of an overlay's has its class.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        for owner in (hooks.method, *hooks.overlays):
            function = getattr(type(owner), code.co_name, None)
            if not inspect.isfunction(function):
                continue
            if inspect.unwrap(function).__code__ is code:
                of_method = owner is hooks.method
                prefix = "" if of_method else f"{type(owner).__name__}."
                yield prefix + code.co_name, code.co_filename


def find_called_hook(error: BaseException, hooks: Hooks) -> str:
    """Return the hook that was called when an error was raised, or ""."""
    if isinstance(error, MessageError):
        return error.hook
    for name, _ in find_hooks(error, hooks):
        return name
    return ""
