"""The arithmetic of a search: successive halving over rounds, with a budget in sample
gradients. Pure functions.

Successive halving plays all configurations for a while, the best 1/η of them η times as
long, and so on (Jamieson & Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016). A rung continues existing runs, so it costs
only its additional rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

FEWEST = 2  # first rounds that do not count for the cost of a round


@dataclass(frozen=True)
class Rung:
    """A step of the search.

    Attributes:
        share: The share of a whole run's rounds.
        trials: The number of configurations that are played so long.
    """

    share: Fraction
    trials: int


def rungs(trials: int, eta: int, count: int) -> list[Rung]:
    """Return the rungs of successive halving.

    Of ``trials`` configurations, one in η^k is played for 1/η^(count − 1 − k) of a
    whole run's rounds; at least one is played.
    """
    return [
        Rung(Fraction(1, eta ** (count - 1 - k)), max(1, trials // eta**k))
        for k in range(count)
    ]


def cost(rungs: Sequence[Rung]) -> Fraction:
    """Return the cost of a search in whole runs: Σ_k n_k (s_k − s_{k−1})."""
    total = Fraction(0)
    before = Fraction(0)
    for rung in rungs:
        total += rung.trials * (rung.share - before)
        before = rung.share
    return total


def whole_runs(trials: int, eta: int, count: int, measured: Fraction) -> list[Rung]:
    """Return the search for runs that cannot go on with more rounds.

    Every configuration is played whole: as many as cost no more than the halving would,
    at least one. measured: the share of a whole run that measures a configuration's
    cost and is played in addition.
    """
    affordable = int(cost(rungs(trials, eta, count)) / (1 + measured))
    return [Rung(Fraction(1), max(1, min(trials, affordable)))]


def measured_rounds(every: int) -> int:
    """Return the number of rounds that measure the cost of a run.

    They are FEWEST rounds, in which methods may do unique work, then a scored round
    and, unless all are scored, an unscored one. The last of them is scored.
    """
    least = FEWEST + min(every, 2)
    return every * ceil(least / every)


def rounds_within(budget: int, gradients: Sequence[int], every: int, most: int) -> int:
    """Return the number of rounds of a whole run that the budget allows.

    Further rounds are taken to cost the same as measured ones; scored rounds and others
    count separately. The result is at least the number of measured rounds and at most
    ``most``.

    Args:
        budget: Sample gradients of a whole run, without the scoring after the last
            round.
        gradients: The costs of the first rounds, ``measured_rounds`` of them, or
            ``most`` if these are fewer.
        every: The number of rounds with one scoring.
        most: The experiment's rounds.
    """
    measured = len(gradients)
    if measured >= most:
        return most
    scored = gradients[-1]
    unscored = gradients[max(FEWEST, measured - every) : -1]
    of_period = scored
    if every > 1:
        of_period += (every - 1) * sum(unscored) // len(unscored)
    left = budget - sum(gradients)
    more = left * every // of_period if of_period else most
    return min(most, measured + max(0, more))


def rounds_at(whole: int, share: Fraction, least: int) -> int:
    """Return the rounds of a rung for a run of ``whole`` rounds, at least ``least``.

    least: the rounds that were played already.
    """
    return max(least, ceil(whole * share))


def highest_cost(gradients: Sequence[int]) -> int:
    """Return the most that the next round is expected to cost, at least 1.

    It is the cost of the dearest round so far, and more where rounds differ.
    """
    dearest = max(gradients)
    return max(1, 2 * dearest - min(gradients))


def best(ranks: Mapping[str, float | None], count: int) -> list[str]:
    """Return the ``count`` names with the highest ranks, fewer if fewer have one.

    Equal ranks keep their order. A name with the rank None, because its run diverged or
    gave no number, never goes on.
    """
    known = {name: rank for name, rank in ranks.items() if rank is not None}
    return sorted(known, key=known.__getitem__, reverse=True)[:count]


def mean(numbers: Sequence[float | None]) -> float | None:
    """Return the mean, added in order; None if any number is missing."""
    total = 0.0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total / len(numbers)


def expected_best(scores: Sequence[float]) -> list[float]:
    """Return the expected highest of b draws from ``scores``, for b = 1 … n.

    Dodge et al., "Show your work: improved reporting of experimental results", EMNLP
    2019, equations 3 to 8: draws are with replacement from the n scores, so P(highest ≤
    v_i) = (i/n)^b for the i-th lowest v_i. The expectation is Σ_i v_i ((i/n)^b − ((i −
    1)/n)^b).
    """
    ascending = sorted(scores)
    count = len(ascending)
    curve = []
    for draws in range(1, count + 1):
        total = 0.0
        for place, score in enumerate(ascending, start=1):
            is_highest = (place / count) ** draws - ((place - 1) / count) ** draws
            total += score * is_highest
        curve.append(total)
    return curve
