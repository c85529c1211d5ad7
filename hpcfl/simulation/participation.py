"""Selection of the clients of a round, and their shares of its training.

Both follow from the experiment's seed, the round and the client alone. With ``[time]``
they also follow from the availability of clients, which follows from the same. So every
rank knows them without communication, and so does a resumed run. Some selections read
the losses of earlier rounds. All ranks then receive these losses (``reported_losses.py``), and
checkpoints store them.
"""

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from hpcfl.clock.calendar import Calendar
from hpcfl.clock.draws import Draws
from hpcfl.clock.selection.base import Selection
from hpcfl.experiment.config import Config


def _nobody() -> np.ndarray:
    return np.arange(0)


@dataclass(frozen=True)
class RoundPlan:
    """Participants of a round. Ids are ascending.

    number: of the round, from 1.
    cohort: ids [n] of the clients that train.
    audience: ids [m] of the clients that get a message: the cohort, and the observers,
        whose models are only scored.
    scored: whether models are scored.
    newcomers: ids of the clients that were never trained with and are scored after the
        last round.
    shares: of the epochs of each local training that each of the cohort does, [n]; None
        where all do all.
    final: whether it is the scoring after the last aggregation.
    """

    number: int
    cohort: np.ndarray
    audience: np.ndarray
    scored: bool
    newcomers: np.ndarray = field(default_factory=_nobody)
    shares: np.ndarray | None = None
    final: bool = False

    @property
    def name(self) -> str:
        """Name of the round in messages."""
        return "after the last round" if self.final else f"round {self.number}"

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
            scored=True,
            shares=self.pace(trained),
        )


def select(config: Config, number: int, calendar: Calendar | None = None) -> RoundPlan:
    """Select the participants of a round. ``calendar`` is needed with ``[time]`` or a
    selection other than the uniform one.
    """
    chosen = cohort(config, number, calendar)
    scored = is_scored(config, number)
    audience = chosen
    if scored and config.evaluation.clients == "all":
        audience = np.arange(config.partition.clients)
    shares = _epoch_shares(config, number, chosen, calendar)
    return RoundPlan(number, chosen, audience, scored, shares=shares)


def is_scored(config: Config, number: int) -> bool:
    """Return whether models are scored in a round."""
    return number % config.evaluation.every == 0 or number == config.rounds


def select_final(
    config: Config, newcomers: np.ndarray, calendar: Calendar | None = None
) -> RoundPlan:
    """Select the clients to score after the last aggregation, as round R + 1. These are
    all clients or the last cohort, and the newcomers.
    """
    audience = np.arange(config.partition.clients)
    if config.evaluation.clients == "cohort":
        audience = cohort(config, config.rounds, calendar)
    return RoundPlan(
        number=config.rounds + 1,
        cohort=_nobody(),
        audience=audience,
        scored=True,
        newcomers=newcomers,
        final=True,
    )


def cohort(config: Config, number: int, calendar: Calendar | None = None) -> np.ndarray:
    """Return the ids [n] of the clients that train in a round, ascending.

    Of M clients ⌊ρM⌋ are drawn uniformly without replacement, at least one. ρ is
    ``participation.fraction`` (protocols.md E2). Each drawn client drops out with the
    probability ``participation.dropout`` and receives nothing in this round. The client
    with the luckiest draw always stays. With ``[time]`` the cohort has the clients
    whose uploads count. Other selections choose other clients.
    """
    if calendar is not None:
        return calendar.step(number).cohort
    clients = config.partition.clients
    everybody = np.ones(clients, bool)
    draws = draws_of(config)
    drawn = draws.choose(everybody, config.participation.count(clients), (number,))
    return np.sort(draws.staying(drawn, (number,)))


def draws_of(config: Config) -> Draws:
    """Return the draws of an experiment."""
    selection = cast(Selection, config.participation)
    return Draws(selection, config.partition.clients, config.seed)


def _epoch_shares(
    config: Config, number: int, chosen: np.ndarray, calendar: Calendar | None
) -> np.ndarray | None:
    """Return each cohort client's share of the epochs of each local training, [n].
    Return None where all do all.
    """
    if calendar is None:
        return draws_of(config).epoch_shares(chosen, (number,))
    shares = np.array([job.share for job in calendar.step(number).jobs])
    return None if (shares == 1).all() else shares
