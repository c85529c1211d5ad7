"""Who takes part in a round, and how much of its training each client does.

Both follow from the experiment's seed, the round and the client alone, so every rank
knows them without asking, and so does a run that is resumed.
"""

from dataclasses import dataclass, field

import numpy as np

from hpcfl.experiment.config import Config
from hpcfl.rows import randomness


def _nobody() -> np.ndarray:
    return np.arange(0)


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part in a round. Ids are ascending.

    number: of the round, from 1.
    cohort: ids [n] of the clients that train.
    audience: ids [m] of the clients that get a message: the cohort, and the observers,
        whose models are only scored.
    scored: whether models are scored.
    newcomers: ids of the clients that were never trained with and are scored after the
        last round.
    """

    number: int
    cohort: np.ndarray
    audience: np.ndarray
    scored: bool
    newcomers: np.ndarray = field(default_factory=_nobody)


def select(config: Config, number: int) -> RoundPlan:
    """Who takes part in a round of the experiment."""
    chosen = cohort(config, number)
    every = config.evaluation.every
    scored = number % every == 0 or number == config.rounds
    audience = chosen
    if scored and config.evaluation.clients == "all":
        audience = np.arange(config.partition.clients)
    return RoundPlan(number, chosen, audience, scored)


def select_final(config: Config, newcomers: np.ndarray) -> RoundPlan:
    """Who is scored after the last aggregation, which counts as round R + 1: all
    clients, or the last cohort, and the newcomers, whose ids are given.
    """
    audience = np.arange(config.partition.clients)
    if config.evaluation.clients == "cohort":
        audience = cohort(config, config.rounds)
    return RoundPlan(config.rounds + 1, _nobody(), audience, True, newcomers)


def cohort(config: Config, number: int) -> np.ndarray:
    """The ids [n] of the clients that train in a round, ascending.

    Of M clients ⌊ρM⌋ are drawn uniformly without replacement, at least one, where ρ is
    ``participation.fraction`` (protocols.md E2). Each of them is lost with the
    probability ``participation.dropout`` and hears nothing of this round; the luckiest
    stays in any case.
    """
    clients = config.partition.clients
    participation = config.participation
    order: np.ndarray = randomness.permutation(clients, config.seed, "cohort", number)
    drawn = order[: participation.count(clients)]
    if participation.dropout:
        luck = randomness.uniform(config.seed, "dropout", number, skip=0, count=clients)
        luck_of_drawn = luck[drawn]
        lost = min(participation.dropout, luck_of_drawn.max())
        drawn = drawn[luck_of_drawn >= lost]
    return np.sort(drawn)


def epoch_shares(config: Config, number: int, ids: np.ndarray) -> np.ndarray | None:
    """The share of the epochs of each local training that the clients ``ids`` [n] of a
    round's cohort do, [n]; None where all do all.

    As in FedProx's experiments (Li et al., MLSys 2020): of the cohort, a share
    ``participation.stragglers``, drawn anew in each round, does a number of epochs that
    is uniform in 1 … E. It is one share for all trainings that a method does in the
    round, those of heads or personal models too. Nobody is left out for it.
    """
    stragglers = config.participation.stragglers
    if not stragglers:
        return None
    clients = config.partition.clients
    luck = randomness.uniform(config.seed, "stragglers", number, skip=0, count=clients)
    share = randomness.uniform(config.seed, "pace", number, skip=0, count=clients)
    chosen = cohort(config, number)
    unlucky_first = np.argsort(luck[chosen], kind="stable")
    # 1e-9: 0.29 · 100 is 28.999… in floating point
    count = int(stragglers * len(chosen) + 1e-9)
    slow = chosen[unlucky_first[:count]]
    return np.where(np.isin(ids, slow), share[ids], 1.0)
