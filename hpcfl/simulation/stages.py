"""The plan of a round, its stages, and the two ways in which a round can fail.

An error inside a stage on one rank is a RankFailure and aborts the job, because the
other ranks would wait for this rank for ever.

Diverged clients are known to all ranks alike. Then all ranks raise the same RunFailure
in the same stage. They leave in order, and the metrics of earlier rounds are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from hpcfl.clients import resources
from hpcfl.errors import Diverged, RankFailure, RunFailure
from hpcfl.experiment import user_code
from hpcfl.simulation import torch_settings

SHOWN = 10  # ids of clients that a message has


def no_clients() -> np.ndarray:
    """Return an empty array of ids."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RoundPlan:
    """Participants of a round. Ids are ascending.

    number: of the round, from 1.
    cohort: ids [n] of the clients that train.
    audience: ids [m] of the clients that get a message: the cohort, and the observers,
        whose models are only scored.
    is_scored: whether models are scored.
    newcomers: ids of the clients that were never trained with and are scored after the
        last round.
    shares: of the epochs of each local training that each of the cohort does, [n]; None
        where all do all.
    is_final: whether it is the scoring after the last aggregation.
    """

    number: int
    cohort: np.ndarray
    audience: np.ndarray
    is_scored: bool
    newcomers: np.ndarray = field(default_factory=no_clients)
    shares: np.ndarray | None = None
    is_final: bool = False

    @property
    def name(self) -> str:
        """Name of the round in messages."""
        return "after the last round" if self.is_final else f"round {self.number}"

    def pace(self, ids: np.ndarray) -> np.ndarray | None:
        """Return the shares of some of the cohort, [k]. Return None where all do all
        epochs.
        """
        if self.shares is None:
            return None
        return self.shares[np.searchsorted(self.cohort, ids)]

    def only(self, ids: np.ndarray) -> "RoundPlan":
        """Return the plan with these clients only, all of which are scored."""
        trained = np.intersect1d(ids, self.cohort)
        return replace(
            self,
            cohort=trained,
            audience=ids,
            is_scored=True,
            shares=self.pace(trained),
        )


class Playable(Protocol):
    """A round as ``play`` sees it."""

    stopwatch: resources.Stopwatch

    @property
    def name(self) -> str:
        """The name of the round in messages."""


@dataclass(frozen=True)
class Stage:
    """One step of a round.

    Attributes:
        name: unique in a round.
        phase: the stopwatch phase that counts its seconds.
        place: the name of the stage in error messages.
        run: does the work; it reads and changes the round.
        is_collective: whether all ranks meet in it. Then all must play it, in the same
            order.
    """

    name: str
    phase: str
    place: str
    run: Callable[[Any], None]
    is_collective: bool = False


# called with a stage's name and the round after the stage
Observer = Callable[[str, Any], None]


def play(
    round: Playable, stages: Sequence[Stage], observers: Sequence[Observer] = ()
) -> None:
    """Play the stages of a round in order. Collective if one of them is.

    Args:
        round: what the stages read and change.
        stages: all of a round's, or some of them.
        observers: called after each stage.

    Raises:
        RankFailure: something failed on this rank alone.
        RunFailure: clients diverged, on all ranks.
    """
    with on_this_rank(round.name), torch_settings.unchanged("a function of yours"):
        for stage in stages:
            place = f"{round.name}, {stage.place}"
            with round.stopwatch.phase(stage.phase), on_this_rank(place):
                stage.run(round)
            for observe in observers:
                observe(stage.name, round)


@contextmanager
def on_this_rank(place: str) -> Iterator[None]:
    """Raise an error inside the block as a RankFailure at ``place`` and at the line of
    a user's code, unless it is one already or one of all ranks.
    """
    try:
        yield
    except (RankFailure, Diverged):
        raise
    except Exception as error:
        # A full disk is not the fault of the line that it stopped.
        line = None if isinstance(error, RunFailure) else user_code.find_line(error)
        where = f"{place}, {line}" if line else place
        raise RankFailure(where) from (resources.explain_full_gpu(error) or error)


def describe_clients(clients: np.ndarray) -> str:
    """Return ``clients 3, 7``, at most ten of them, for messages."""
    plural = "s" if len(clients) > 1 else ""
    numbers = ", ".join(str(client) for client in clients[:SHOWN])
    more = " …" if len(clients) > SHOWN else ""
    return f"client{plural} {numbers}{more}"
