"""Failing together: what one rank cannot do no rank goes on from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hpcfl.errors import RunFailure, UserError


class Ranks(Protocol):
    """What storage needs of the ranks: JSON-able objects between them."""

    rank: int
    size: int

    @property
    def is_server(self) -> bool: ...

    def collect(self, value: Any) -> list[Any] | None: ...

    def allgather(self, value: Any) -> list[Any]: ...

    def share(self, value: Any) -> Any: ...


@contextmanager
def agreed(communicator: Ranks) -> Iterator[None]:
    """Collective. When the block fails on any rank it fails on all: with its own exception there, with
    a UserError or RunFailure that names the first such rank elsewhere. No rank is left waiting.
    """
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    told = None if failure is None else [isinstance(failure, UserError),
                                         str(failure) or type(failure).__name__]
    first = _first(communicator.allgather(told))
    if failure is not None:
        raise failure
    if first:
        raise (UserError if first[0] else RunFailure)(first[1])


def _first(told: list[list[Any] | None]) -> list[Any] | None:
    return next(([mine[0], f"rank {rank}: {mine[1]}"] for rank, mine in enumerate(told) if mine), None)
