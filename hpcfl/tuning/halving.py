"""The arithmetic of a search: successive halving over rounds, with a budget in gradients
of samples. Pure functions.

Successive halving (Jamieson & Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016) plays all configurations for a while, the
best 1/η of them η times as long, and so on. A rung goes on with the runs that stand, so
that it costs what its rounds are more than those of the rung before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

FEWEST = 2  # rounds before those that the cost of a round is measured in


@dataclass(frozen=True)
class Rung:
    """A step of the search.

    Attributes:
        share: Of a whole run's rounds.
        trials: How many configurations are played so long.
    """

    share: Fraction
    trials: int


def rungs(trials: int, eta: int, count: int) -> list[Rung]:
    """The rungs of successive halving: of ``trials`` configurations one in η^k is
    played for 1/η^(count − 1 − k) of a whole run's rounds, at least one.
    """
    return [
        Rung(Fraction(1, eta ** (count - 1 - k)), max(1, trials // eta**k))
        for k in range(count)
    ]


def cost(rungs: Sequence[Rung]) -> Fraction:
    """What a search costs, in whole runs: Σ_k n_k (s_k − s_{k−1})."""
    total = Fraction(0)
    before = Fraction(0)
    for rung in rungs:
        total += rung.trials * (rung.share - before)
        before = rung.share
    return total


def whole_runs(trials: int, eta: int, count: int, measured: Fraction) -> list[Rung]:
    """The search where a run cannot go on with more rounds, so that every configuration
    is played whole: as many as cost no more than the halving would, at least one.

    measured: the share of a whole run that tells what a configuration costs, and that
        is played beside it.
    """
    affordable = int(cost(rungs(trials, eta, count)) / (1 + measured))
    return [Rung(Fraction(1), max(1, min(trials, affordable)))]


def measured_rounds(every: int) -> int:
    """How many rounds tell what a run costs: FEWEST, in which methods may do what they
    do once, then one that is scored and, unless all are, one that is not. The last of
    them is scored.
    """
    least = FEWEST + min(every, 2)
    return every * ceil(least / every)


def rounds_within(
    budget: int, gradients: Sequence[int], final: int, every: int, most: int
) -> int:
    """How many rounds a whole run has: as many as the budget allows if further rounds
    cost what those that were measured did, scored ones and others apart; at least those
    that were measured and at most ``most``.

    Args:
        budget: Gradients of samples of a whole run.
        gradients: What the first rounds took, of which there are ``measured_rounds``,
            or ``most`` if these are fewer.
        final: What the scoring after the last round takes.
        every: How many rounds bring one scoring.
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
    left = budget - sum(gradients) - final
    more = left * every // of_period if of_period else most
    return min(most, measured + max(0, more))


def rounds_at(whole: int, share: Fraction, least: int) -> int:
    """The rounds of a rung, of a run that has ``whole`` of them and that was played for
    ``least`` already.
    """
    return max(least, ceil(whole * share))


def best(ranks: Mapping[str, float | None], count: int) -> list[str]:
    """The ``count`` names with the highest ranks, fewer where fewer have one.

    Of equals the first comes first; who has None, because it diverged or gave no
    number, never goes on.
    """
    order = list(ranks)
    known = [name for name in order if ranks[name] is not None]
    known.sort(key=lambda name: (-_number(ranks[name]), order.index(name)))
    return known[:count]


def mean(numbers: Sequence[float | None]) -> float | None:
    """Their mean, added in order; None where any is missing."""
    total = 0.0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total / len(numbers)


def expected_best(scores: Sequence[float]) -> list[float]:
    """The expected highest of b draws from ``scores``, for b = 1 … n.

    Dodge et al., "Show your work: improved reporting of experimental results", EMNLP
    2019, equations 3 to 8: draws are with replacement from the n scores that were seen,
    so P(highest ≤ v_i) = (i/n)^b for the i-th lowest v_i, and the expectation is
    Σ_i v_i ((i/n)^b − ((i − 1)/n)^b).
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


def _number(rank: float | None) -> float:
    assert rank is not None
    return rank
