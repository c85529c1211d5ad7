"""Failing together: what one rank cannot do no rank goes on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hpcfl.errors import RunFailure, UserError


class Ranks(Protocol):
    """What checkpoints and ``agreed`` need of a communicator: the exchange of JSON-able
    values.
    """

    rank: int
    size: int

    @property
    def is_server(self) -> bool: ...

    def gather(self, value: Any) -> list[Any] | None: ...

    def allgather(self, value: Any) -> list[Any]: ...

    def bcast(self, value: Any) -> Any: ...


@contextmanager
def agreed(communicator: Ranks) -> Iterator[None]:
    """Collective. A block that fails on all ranks if it fails on any, so that no rank
    is left waiting.

    A rank on which it failed raises its own exception. The others raise a UserError, if
    the first failure was one, or else a RunFailure, with that rank's number and
    message.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    told = (
        None
        if failure is None
        else [isinstance(failure, UserError), str(failure) or type(failure).__name__]
    )
    first = _first(communicator.allgather(told))
    if failure is not None:
        raise failure
    if first:
        raise (UserError if first[0] else RunFailure)(first[1])


def _first(told: list[list[Any] | None]) -> list[Any] | None:
    """What the lowest failing rank told: [whether it is a UserError, the message with
    the rank's number].
    """
    return next(
        (
            [mine[0], f"rank {rank}: {mine[1]}"]
            for rank, mine in enumerate(told)
            if mine
        ),
        None,
    )
