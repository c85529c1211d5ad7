"""Agreement of all ranks on failures and on settings."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from hpcfl.errors import RunFailure, UserError, lack_of_memory

SHOWN = 100  # characters of a value in a message


class Ranks(Protocol):
    """The part of a communicator that exchanges JSON-able values."""

    rank: int
    size: int

    @property
    def is_server(self) -> bool: ...

    def gather(self, value: Any) -> list[Any] | None: ...

    def allgather(self, value: Any) -> list[Any]: ...

    def bcast(self, value: Any) -> Any: ...


@contextmanager
def agreed(communicator: Ranks) -> Iterator[None]:
    """Raise an exception on all ranks if the block fails on any. Collective.

    A failing rank raises its own exception. The other ranks raise the first failure
    with its rank and message: a UserError for a UserError, else a RunFailure. A lack of
    memory is a RunFailure even if it looks like bad input.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        if isinstance(error, UserError):
            failure = lack_of_memory(error) or error
    report = (
        None
        if failure is None
        else [isinstance(failure, UserError), str(failure) or type(failure).__name__]
    )
    first = _first(communicator.allgather(report))
    if failure is not None:
        raise failure
    if first:
        raise (UserError if first[0] else RunFailure)(first[1])


def _first(report: list[list[Any] | None]) -> list[Any] | None:
    """Return [is a UserError, message with the rank] of the lowest failing rank, if
    any.
    """
    return next(
        (
            [mine[0], f"rank {rank}: {mine[1]}"]
            for rank, mine in enumerate(report)
            if mine
        ),
        None,
    )


def require_equal(
    communicator: Ranks, settings: Mapping[str, Any], advice: str
) -> None:
    """Raise UserError on all ranks if a setting differs between ranks. Collective.

    The message names the first key that differs, with two values and their ranks.

    Args:
        communicator: The communicator of the ranks.
        settings: JSON-able values by key.
        advice: The end of the message.
    """
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if len(set(communicator.allgather(digest))) == 1:
        return
    everyones = communicator.allgather(dict(settings))
    for rank, other in enumerate(everyones):
        keys = everyones[0].keys() | other.keys()
        # a key such as seed before those that have its value as their default
        for key in sorted(keys, key=lambda key: (key.count("."), key)):
            if everyones[0].get(key) != other.get(key):
                first, second = _shown(everyones[0], key), _shown(other, key)
                raise UserError(
                    f"{key}: {first} on rank 0, {second} on rank {rank}; {advice}"
                )


def _shown(settings: Mapping[str, Any], key: str) -> str:
    """Return a value as text of limited length."""
    if key not in settings:
        return "no value"
    text = json.dumps(settings[key])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
