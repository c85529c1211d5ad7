"""The stages of a round, and the two ways in which a round can fail.

What fails on one rank alone is a RankFailure and aborts the job: the other ranks go on
and will wait for this one, so that they cannot agree on an end any more. Whatever fails
inside a stage fails in this way.

What all ranks know alike, such as which clients diverged, is a RunFailure that all of
them raise at the same place, between two stages. They leave in order, and what earlier
rounds recorded is kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from hpcfl.clients import resources
from hpcfl.errors import RankFailure, RunFailure
from hpcfl.experiment import blame

SHOWN = 10  # ids of clients that a message has

Function = TypeVar("Function", bound=Callable[..., Any])


def stage(phase: str, place: str, collective: bool) -> Callable[[Function], Function]:
    """Decorates a method of ``Round`` that is a stage.

    Args:
        phase: under which its seconds are counted.
        place: what a failure on this rank says of where it happened.
        collective: whether all ranks meet in it. Then all must call it, in the same
            order; a stage that is not collective waits for nobody. It is an attribute
            of the stage.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(self: Any, *arguments: Any) -> Any:
            with self.stopwatch.phase(phase), on_this_rank(f"{self.name}, {place}"):
                return function(self, *arguments)

        staged: Any = run
        staged.collective = collective
        return cast(Function, staged)

    return decorate


@contextmanager
def on_this_rank(place: str) -> Iterator[None]:
    """Raise a failure inside the block as a RankFailure at ``place`` and at the line of a
    user's code, unless it is one already.
    """
    try:
        yield
    except RankFailure:
        raise
    except Exception as error:
        # A full disk is not the fault of the line that it stopped.
        line = None if isinstance(error, RunFailure) else blame.line_of(error)
        where = f"{place}, {line}" if line else place
        raise RankFailure(where) from (resources.failure(error) or error)


def named(clients: np.ndarray) -> str:
    """``clients 3, 7``, at most ten of them, for messages."""
    plural = "s" if len(clients) > 1 else ""
    numbers = ", ".join(str(client) for client in clients[:SHOWN])
    more = " …" if len(clients) > SHOWN else ""
    return f"client{plural} {numbers}{more}"
