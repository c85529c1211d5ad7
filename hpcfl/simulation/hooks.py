"""Calls of a method's hooks, with the overlays that change its messages.

``Hooks`` calls the hooks, ``check_message`` checks their results, and ``find_hooks``
finds the hooks in which an error was raised.
"""

import difflib
import inspect
import itertools
import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Mean, Message, wrap_entries
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.methods.base import Audience, Cohort, Method, Overlay, Setup, State
from hpcfl.rows.declared import (
    DeclaredTensors,
    FixedTensors,
    NamedTensors,
    Watch,
    describe_form,
    refuse_other_than_tensors,
)
from hpcfl.scores.metric_names import AGGREGATION, PRIVACY, RECORDED

# Results of hooks that return no message, by type.
EXPECTED: dict[type, str] = {
    list: "a list of texts",
    dict: "a dictionary",
    Real: "a number",
}

# Names of numbers that an overlay may measure; none of them is a score.
MEASURED = re.compile(rf"(({RECORDED}|{PRIVACY}|{AGGREGATION})/)?\w[\w.+-]*")


class MessageError(TypeError):
    """Error for an invalid message that a hook returned.

    Attributes:
        hook: name of the hook.
    """

    def __init__(self, hook: str, text: str) -> None:
        super().__init__(f"'{hook}' returns {text}")
        self.hook = hook


def refuse_other_than_mappings(hook: str, returned: Any) -> None:
    """Raise MessageError if a hook has not returned tensors by name."""
    if not isinstance(returned, Mapping):
        given = describe_form(returned)
        raise MessageError(hook, f"{given}; expected a dictionary of tensors by name")


def check_message(
    hook: str, message: Any, clients: int, is_from_server: bool
) -> Message:
    """Check a message that a hook returned, and return it.

    Args:
        hook: name of the hook.
        message: result of the hook.
        clients: number of clients that receive or send the message.
        is_from_server: whether the server sends the message.

    Raises:
        MessageError: The message cannot be sent.
    """
    refuse_other_than_mappings(hook, message)
    for name in message:
        if not isinstance(name, str):
            raise MessageError(hook, f"the name {name!r}; expected a text: '{name}'")
    try:
        entries = wrap_entries(message)
    except ValueError as error:
        raise MessageError(hook, f"an invalid message: {error}") from None
    for name, entry in entries.items():
        if is_from_server and isinstance(entry, Mean):
            raise MessageError(hook, f"'{name}' as a Mean, which only clients can send")
        if is_from_server and entry.shared:
            continue
        if entry.shared or len(entry.tensor) != clients:
            shape = list(entry.tensor.shape)
            raise MessageError(
                hook,
                f"'{name}' of shape {shape}; expected a row for each client, here "
                f"[{clients}, width]",
            )
    return cast(Message, message)


def check_measured(hook: str, returned: Any) -> dict[str, float]:
    """Return the numbers that an overlay measured, as floats by name.

    Args:
        hook: name of the hook.
        returned: result of the hook.

    Raises:
        MessageError: The numbers cannot be recorded.
    """
    if not isinstance(returned, Mapping):
        given = describe_form(returned)
        raise MessageError(hook, f"{given}; expected a dictionary of numbers by name")
    numbers = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not MEASURED.fullmatch(name):
            raise MessageError(
                hook, f"{name!r} as a name; expected one such as 'recorded/norm'"
            )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            given = describe_form(value)
            raise MessageError(
                hook, f"'{name}' as {given}; expected one number"
            ) from None
    return numbers


def call_hook(owner: Method | Overlay, hook: str, kind: type, *facts: Any) -> Any:
    """Call a hook that returns no message, and return its result.

    Args:
        owner: method or overlay.
        hook: name of the hook.
        kind: type of its result, a key of EXPECTED.
        facts: its arguments.

    Raises:
        UserError: The hook of a user fails, or its result has another type.
    """
    function = getattr(owner, hook)
    with user_code.locate_errors():
        returned = function(*facts)
    is_valid = isinstance(returned, kind)
    if is_valid and kind is list:
        is_valid = all(isinstance(line, str) for line in returned)
    if not is_valid:
        raise UserError(
            f"{user_code.locate(function)}{type(owner).__name__}.{hook} returns "
            f"{returned!r}; expected {EXPECTED[kind]}"
        )
    return returned


def find_misspelt_hooks(owner: type) -> list[str]:
    """Return a line for each function of a user's method or overlay that is probably a
    misspelt hook, and therefore never called.
    """
    own = list(itertools.takewhile(_is_of_user, owner.__mro__))
    known = {name for kind in owner.__mro__[len(own) :] for name in vars(kind)}
    lines = []
    for kind in own:
        for name, function in vars(kind).items():
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            is_hook = name in known or name.startswith("_")
            if inspect.isfunction(function) and not is_hook and near:
                lines.append(
                    f"{kind.__name__}.{name} is not a hook, so hpcfl never calls it; did "
                    f"you mean '{near[0]}'?"
                )
    return lines


def _is_of_user(kind: type) -> bool:
    return not kind.__module__.startswith("hpcfl.")


@dataclass(frozen=True)
class Hooks:
    """The hooks of a method for messages and states that overlays can change.

    Attributes:
        method: method of the experiment.
        overlays: overlays, innermost first.
    """

    method: Method
    overlays: tuple[Overlay, ...]

    def make_initial_state(self, hook: str, setup: Setup) -> State:
        """Return the initial state declared by the method and the overlays.

        Args:
            hook: name of the hook, ``server_state`` or ``client_state``.
            setup: facts that methods may use.

        Raises:
            UserError: A value is not a tensor, or two of them declare the same name.
        """
        state: State = {}
        for owner in (self.method, *self.overlays):
            declare = getattr(owner, hook)
            own: State = declare(setup)
            with user_code.locate_definition(declare):
                refuse_other_than_tensors(own, hook)
            if taken := sorted(state.keys() & own.keys()):
                raise UserError(
                    f"{type(owner).__name__}.{hook}: another overlay or the method declares "
                    f"the name '{taken[0]}'; choose another name"
                )
            state |= own
        return state

    def compose(self, hook: str, state: State, audience: Audience) -> Message:
        """Return the message of a hook of the method to an audience, on rank 0.

        Args:
            hook: name of the hook.
            state: state of the server.
            audience: clients that receive the message.

        Raises:
            MessageError: The message cannot be sent.
        """
        server: Any = FixedTensors(state, "server")
        clients = len(audience.ids)
        returned = getattr(self.method, hook)(server, audience)
        message = check_message(hook, returned, clients, is_from_server=True)
        for overlay in self.overlays:
            returned = overlay.send(server, audience, message)
            name = f"{type(overlay).__name__}.send"
            message = check_message(name, returned, clients, is_from_server=True)
        return message

    def receive(self, fleet: Fleet, inbox: Inbox) -> list[Inbox]:
        """Return the inboxes of a fleet: of the overlays, then of the method.

        The inbox of the outermost overlay comes first. That of the method is not
        prepared yet.

        Args:
            fleet: fleet of the clients.
            inbox: messages received for these clients.
        """
        inboxes = [inbox]
        for overlay in reversed(self.overlays):
            inboxes.append(overlay.receive(fleet, inboxes[-1]))
            name = f"{type(overlay).__name__}.receive"
            refuse_other_than_mappings(name, inboxes[-1])
        own: Any = NamedTensors(inboxes[-1], "inbox")
        return [*inboxes[:-1], own]

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return the method's inbox with the values that its ``prepare`` adds.

        Args:
            fleet: fleet of the clients.
            inbox: inbox of the method.
        """
        returned = self.method.prepare(fleet, inbox)
        refuse_other_than_mappings("prepare", returned)
        prepared: Any = NamedTensors(returned, "inbox")
        return cast(Inbox, prepared)

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        """Train the clients of a fleet, and return the message that they send.

        Args:
            fleet: fleet of the clients.
            inbox: messages received for these clients.

        Raises:
            MessageError: The message cannot be sent.
        """
        *of_overlays, own = self.receive(fleet, inbox)
        returned = self.method.update(fleet, self.prepare(fleet, own))
        clients = len(fleet.ids)
        message = check_message("update", returned, clients, is_from_server=False)
        for overlay, received in zip(self.overlays, reversed(of_overlays), strict=True):
            name = f"{type(overlay).__name__}.upload"
            # Private state may have the same tensors.
            entries = wrap_entries(message)
            watch = Watch({key: entry.tensor for key, entry in entries.items()})
            returned = overlay.upload(fleet, received, message)
            if changed := watch.end():
                raise MessageError(
                    name,
                    f"a message after changing '{changed[0]}' in place; change a copy",
                )
            message = check_message(name, returned, clients, is_from_server=False)
        return message

    def aggregate(self, state: State, cohort: Cohort, uplink: State) -> None:
        """Update the server's state by the method's ``aggregate``, on rank 0.

        Args:
            state: state of the server, which changes.
            cohort: clients that uploaded.
            uplink: their messages.

        Raises:
            MessageError: The method returns a value instead of assigning it.
        """
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
            returned = self.method.aggregate(server, cohort, own)
            if returned is not None:
                form = describe_form(returned)
                raise MessageError(
                    "aggregate", f"{form}, which is lost; assign server[NAME] instead"
                )
        state.update(server)

    @property
    def acts_on_empty_cohorts(self) -> bool:
        """Return whether the server takes its step in a round without uploads."""
        return any(overlay.acts_on_empty_cohorts() for overlay in self.overlays)

    def notes(self, setup: Setup) -> list[str]:
        """Return notes of the method and the overlays for the user before round 1.

        Raises:
            UserError: A hook of the user fails, or does not return texts.
        """
        lines: list[str] = call_hook(self.method, "notes", list, setup)
        for overlay in self.overlays:
            lines = lines + call_hook(overlay, "notes", list)
        for owner in (self.method, *self.overlays):
            lines = lines + find_misspelt_hooks(type(owner))
        return lines

    def measure(
        self, state: State, round: int, taken: Collection[str]
    ) -> dict[str, float]:
        """Return the overlays' metrics of a round, on rank 0.

        Args:
            state: state of the server.
            round: number of the round.
            taken: names of the round's other numbers.

        Raises:
            MessageError: The numbers of an overlay cannot be recorded, or have a name
                that is taken.
        """
        numbers: dict[str, float] = {}
        for overlay in self.overlays:
            hook = f"{type(overlay).__name__}.measure"
            measured = check_measured(hook, overlay.measure(state, round))
            for name in measured:
                # The deviation of a number over clients is recorded as NUMBER_std.
                number = name.removesuffix("_std")
                if name in numbers or {name, number} & {*taken}:
                    raise MessageError(
                        hook, f"'{name}', a name of another number; choose another name"
                    )
            numbers |= measured
        return numbers


def find_hooks(error: BaseException, hooks: Hooks) -> Iterator[tuple[str, str]]:
    """Yield the hooks in which an error was raised, outermost first.

    They are hooks of the method and of overlays.

    Yields:
        The name of the hook and its file. The name of an overlay's hook includes its
        class.
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
    return next((name for name, _ in find_hooks(error, hooks)), "")
