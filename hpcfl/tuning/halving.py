"""Successive halving over rounds, with a budget in sample gradients. Pure functions.

Successive halving runs all configurations for some rounds, then the best 1/η of them for
η times as many, and so on (Jamieson & Talwalkar, "Non-stochastic best arm identification
and hyperparameter optimization", AISTATS 2016). A rung continues existing runs, so it
costs only its additional rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

WARM_UP_ROUNDS = 2  # number of first rounds that are left out of the cost of a round


@dataclass(frozen=True)
class Rung:
    """A step of the search.

    Attributes:
        share: Fraction of a whole run's rounds.
        trials: Number of configurations that run up to this fraction.
    """

    share: Fraction
    trials: int


def list_rungs(trials: int, eta: int, count: int) -> list[Rung]:
    """Return the rungs of successive halving.

    In rung k, one in η^k configurations, at least one, runs up to 1/η^(count − 1 − k) of
    a whole run's rounds.

    Args:
        trials: Number of configurations in the first rung.
        eta: Factor η between rungs.
        count: Number of rungs.
    """
    return [
        Rung(Fraction(1, eta ** (count - 1 - k)), max(1, trials // eta**k))
        for k in range(count)
    ]


def compute_cost(rungs: Sequence[Rung]) -> Fraction:
    """Return the cost of a search in whole runs: Σ_k n_k (s_k − s_{k−1})."""
    total = Fraction(0)
    before = Fraction(0)
    for rung in rungs:
        total += rung.trials * (rung.share - before)
        before = rung.share
    return total


def list_whole_runs(
    trials: int, eta: int, count: int, measured: Fraction
) -> list[Rung]:
    """Return the search for runs that cannot continue with more rounds.

    The search has one rung of whole runs. It costs at most as much as successive halving
    would, unless that does not pay for one run.

    Args:
        trials: Maximum number of configurations.
        eta: Factor between the rungs of successive halving.
        count: Number of rungs of successive halving.
        measured: Additional rounds that measure a configuration's cost, as a fraction
            of a whole run.
    """
    affordable = int(compute_cost(list_rungs(trials, eta, count)) / (1 + measured))
    return [Rung(Fraction(1), max(1, min(trials, affordable)))]


def count_measured_rounds(every: int) -> int:
    """Return the number of rounds that measure the cost of a run.

    The rounds are WARM_UP_ROUNDS ones in which methods may do work only once, then a scored
    round and, unless all rounds are scored, an unscored one. The last one is scored.

    Args:
        every: Number of rounds per scoring.
    """
    least = WARM_UP_ROUNDS + min(every, 2)
    return every * ceil(least / every)


def count_rounds_within(
    budget: int, gradients: Sequence[int], every: int, most: int
) -> int:
    """Return the number of rounds of a whole run that the budget allows.

    Further rounds are assumed to cost as much as the measured ones; scored and unscored
    rounds have separate costs. The result is at least the number of measured rounds and
    at most ``most``.

    Args:
        budget: Sample gradients of a whole run, without the scoring after the last
            round.
        gradients: Sample gradients of each measured round; ``count_measured_rounds`` rounds,
            or ``most`` if that is fewer.
        every: Number of rounds per scoring.
        most: Number of rounds of the experiment.
    """
    measured = len(gradients)
    if measured >= most:
        return most
    scored = gradients[-1]
    unscored = gradients[max(WARM_UP_ROUNDS, measured - every) : -1]
    of_period = scored
    if every > 1:
        of_period += (every - 1) * sum(unscored) // len(unscored)
    left = budget - sum(gradients)
    more = left * every // of_period if of_period else most
    return min(most, measured + max(0, more))


def count_rounds_at(whole: int, share: Fraction, least: int) -> int:
    """Return the number of rounds of a run at the end of a rung.

    Args:
        whole: Number of rounds of a whole run.
        share: Fraction of a whole run at the end of the rung.
        least: Number of rounds that were played already; a lower bound of the result.
    """
    return max(least, ceil(whole * share))


def find_highest_cost(gradients: Sequence[int]) -> int:
    """Return the highest expected cost of the next round, at least 1.

    It is the highest cost of a round so far plus the range of the costs so far.
    """
    dearest = max(gradients)
    return max(1, 2 * dearest - min(gradients))


def select_best(numbers: Mapping[str, float | None], count: int) -> list[str]:
    """Return the ``count`` names with the highest numbers, fewer if fewer have one.

    Equal numbers keep their order. None marks a run that diverged or has no score; its
    name is left out.
    """
    known = {name: number for name, number in numbers.items() if number is not None}
    return sorted(known, key=known.__getitem__, reverse=True)[:count]


def compute_mean(numbers: Sequence[float | None]) -> float | None:
    """Return the mean, summed in order; None if a number is missing."""
    total = 0.0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total / len(numbers)


def expect_best(scores: Sequence[float]) -> list[float]:
    """Return the expected maximum of b draws from ``scores``, for b = 1 … n.

    Source: Dodge et al., "Show your work: improved reporting of experimental results",
    EMNLP 2019, equations 3 to 8. Draws are with replacement from the n scores, so
    P(maximum ≤ v_i) = (i/n)^b for the i-th lowest v_i. The expectation is
    Σ_i v_i ((i/n)^b − ((i − 1)/n)^b).
    """
    shares = np.linspace(0, 1, len(scores) + 1)
    curve = []
    for draws in range(1, len(scores) + 1):
        is_highest = np.diff(shares**draws)
        curve.append(float(is_highest @ np.sort(scores)))
    return curve
