"""Checks of the messages that a method's hooks return."""

from collections.abc import Mapping
from typing import Any

from hpcfl.communication.message import Mean, Message, fields


class MessageError(TypeError):
    """A hook of the method returned what cannot travel. hook: its name."""

    def __init__(self, hook: str, text: str) -> None:
        super().__init__(f"'{hook}' returns {text}")
        self.hook = hook


def checked(hook: str, message: Any, clients: int, downwards: bool) -> Message:
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
            or_shared = ", or one for all, [width]" if downwards else ""
            raise MessageError(
                hook,
                f"'{name}' of shape {shape}; expected a row for each client, here "
                f"[{clients}, width]{or_shared}",
            )
    return message
