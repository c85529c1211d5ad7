"""Plans and stages of a round, and the function ``play`` that runs stages in order.

A round can fail in two ways:

* An error in a stage on one rank is a RankFailure. It aborts the job, because the other
  ranks would wait for this rank forever.
* Diverged clients are known to all ranks. All ranks raise the same RunFailure in the
  same stage and exit in order. The metrics of earlier rounds are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcfl.clients import resources
from hpcfl.errors import Diverged, RankFailure, RunFailure
from hpcfl.experiment import user_code
from hpcfl.simulation import torch_settings

SHOWN = 10  # maximum number of client ids in a message


def no_clients() -> np.ndarray:
    """Return an empty array of ids."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RoundPlan:
    """Participants of a round. Ids are ascending.

    Attributes:
        number: number of the round, from 1.
        cohort: ids [n] of the clients that train.
        audience: ids [m] of the clients that receive a message: the cohort, and
            observers, whose models are only scored.
        is_scored: whether models are scored.
        newcomers: ids of clients that never took part in training and are scored after
            the last round.
        shares: fraction of the epochs of each local training that each client of the
            cohort completes, [n]; None if all clients complete all epochs.
        is_final: whether this is the scoring after the last aggregation.
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
        """The name of the round in messages."""
        return "after the last round" if self.is_final else f"round {self.number}"

    def select_shares(self, ids: np.ndarray) -> np.ndarray | None:
        """Return ``shares`` for some clients of the cohort, [k], or None."""
        if self.shares is None:
            return None
        return self.shares[np.searchsorted(self.cohort, ids)]

    def select(self, ids: np.ndarray) -> "RoundPlan":
        """Return the plan for some clients only, all of which are scored."""
        trained = np.intersect1d(ids, self.cohort)
        return replace(
            self,
            cohort=trained,
            audience=ids,
            is_scored=True,
            shares=self.select_shares(trained),
        )


@dataclass(frozen=True)
class Stage:
    """One step of a round.

    Attributes:
        name: name of the stage, unique in a round.
        phase: phase of the stopwatch in which the stage is timed.
        place: name of the stage in error messages.
        run: function that reads and changes the round.
    """

    name: str
    phase: str
    place: str
    run: Callable[[Any], None]


# An observer is called after each stage, with the name of the stage and the round.
Observer = Callable[[str, Any], None]


def play(
    round: Any, stages: Sequence[Stage], observers: Sequence[Observer] = ()
) -> None:
    """Run the stages of a round in order. Collective if one of the stages is.

    Args:
        round: round that the stages read and change.
        stages: all stages of a round, or some of them.
        observers: functions called after each stage.

    Raises:
        RankFailure: Something failed on this rank alone.
        RunFailure: Clients diverged, on all ranks.
    """
    with on_this_rank(round.name), torch_settings.unchanged("your function"):
        for stage in stages:
            place = f"{round.name}, {stage.place}"
            with round.stopwatch.phase(stage.phase), on_this_rank(place):
                stage.run(round)
            for observe in observers:
                observe(stage.name, round)


@contextmanager
def on_this_rank(place: str) -> Iterator[None]:
    """Convert an error in a block into a RankFailure that names the place.

    Errors that are a RankFailure already, or that all ranks raise, pass unchanged.

    Args:
        place: name of the place in the message. A line of the user's code is appended
            if it raised the error.
    """
    try:
        yield
    except (RankFailure, Diverged):
        raise
    except Exception as error:
        # The line of the user's code is not the cause of errors such as a full disk.
        line = None if isinstance(error, RunFailure) else user_code.find_line(error)
        where = f"{place}, {line}" if line else place
        raise RankFailure(where) from (resources.explain_full_gpu(error) or error)


def describe_clients(clients: np.ndarray) -> str:
    """Return ``clients 3, 7``, with at most SHOWN ids, for messages."""
    plural = "s" if len(clients) > 1 else ""
    numbers = ", ".join(str(client) for client in clients[:SHOWN])
    more = " …" if len(clients) > SHOWN else ""
    return f"client{plural} {numbers}{more}"
