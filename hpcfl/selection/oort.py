"""Oort: clients with large utility for the model and high speed (Lai, Zhu, Madhyastha &
Chowdhury, OSDI 2021, Algorithm 1; the authors' code is in FedScale).

Of the K clients of a round, a fraction ε is drawn for exploration, in proportion to
speed, from clients that have never taken part. The other clients are drawn in
proportion to their utility

    (U_i − min U) / range U + √(0.1 ln R / L_i),    times (T/t_i)^α if t_i > T,

from clients with at least 95 % of the utility of the last of the best clients. U_i is a
client's number of samples times its loss, clipped at the 95 % quantile. R is the round,
L_i the client's last round, and t_i its working time. T is a quantile of all t_i. Every
W rounds the quantile is raised, unless these W rounds had more utility than the W
rounds before (the pacer).

Deviations. For U_i the paper uses the root mean square of the losses of a client's
samples; here it is their mean, which clients send. As in the code, U is scaled to its
range before the uncertainty is added, and T is a quantile; in the paper T is in
seconds. The paper excludes clients that were chosen more than 10 times; the code does
so only on request, and this selection never does. If too few clients have never taken
part, other clients fill the cohort.
"""

from decimal import Decimal
from math import fsum

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.selection.base import Known, Selection

DECAY = 0.98  # factor of ε from round to round
LEAST = 0.2  # minimum of ε
CUT_OFF = 0.95  # minimum utility, relative to the last of the best clients
CLIP = 0.95  # quantile at which U is clipped
PACER = 0.05  # increment of the quantile of T


class Oort(Selection):
    by_losses = True
    by_time = True
    explore: float = Field(
        0.9,
        ge=0,
        le=1,
        description="ε, fraction of a round's clients that have never taken part, in round 1; "
        "multiplied by 0.98 in each round, down to 0.2",
    )
    preferred: float = Field(
        0.3,
        gt=0,
        le=1,
        description="fraction of the clients that are fast enough, in the first rounds",
    )
    penalty: PositiveInt = Field(
        2, le=10, description="α, exponent of the penalty for slower clients"
    )
    window: PositiveInt = Field(
        20, description="W, number of rounds after which the time limit can be raised"
    )

    def choose(self, known: Known, count: int) -> np.ndarray:
        explored = known.reports.last_rounds > 0
        old = np.flatnonzero(known.candidates & explored)
        new = np.flatnonzero(known.candidates & ~explored)
        exploring = int(count * self.compute_share(known.round) + 1e-9)
        exploring = max(exploring, count - len(old))
        exploring = min(exploring, len(new))
        best = self._draw_best(known, old, count - exploring)
        assert known.ticks is not None
        speed = 1 / known.ticks[new]
        fast = _draw(known.random("explore"), new, speed, exploring)
        return np.concatenate([best, fast])

    def compute_share(self, round: int) -> float:
        """Return ε, the fraction of a round's clients that have never taken part."""
        share = self.explore
        for _ in range(round - 1):
            if share <= LEAST:
                break
            share = max(share * DECAY, LEAST)
        return share

    def _draw_best(self, known: Known, old: np.ndarray, count: int) -> np.ndarray:
        """Draw at most ``count`` of the ids ``old`` by utility, among the best ones."""
        count = min(count, len(old))
        if not count:
            return old[:0]
        utilities = self.compute_utilities(known, old)
        last = np.sort(utilities)[-count]
        good = utilities >= CUT_OFF * last
        return _draw(known.random("exploit"), old[good], utilities[good], count)

    def compute_utilities(self, known: Known, old: np.ndarray) -> np.ndarray:
        """Return the utilities of the clients with the ids ``old``, [n]."""
        reports = known.reports
        gains = known.samples[old] * np.maximum(reports.losses[old], 0)
        ordered = np.sort(gains)
        clip = ordered[min(int(CLIP * len(ordered)), len(ordered) - 1)]
        width = max(ordered[-1] - ordered[0], 1e-4)
        learnt = (np.minimum(gains, clip) - ordered[0]) / width
        # Decimal rounds the logarithm correctly, so it is the same on every machine.
        logarithm = float(Decimal(known.round).ln())
        utilities = learnt + np.sqrt(0.1 * logarithm / reports.last_rounds[old])
        assert known.ticks is not None
        slowness = self.find_time_limit(known) / known.ticks[old]
        for _ in range(self.penalty):
            utilities *= np.minimum(slowness, 1)
        result: np.ndarray = utilities
        return result

    def find_time_limit(self, known: Known) -> int:
        """Return T, the longest working time of a client that is fast enough.

        T is in microseconds.
        """
        assert known.ticks is not None
        totals = known.reports.totals
        share = self.preferred
        for end in range(2 * self.window, len(totals) + 1, self.window):
            middle = end - self.window
            before = fsum(totals[middle - self.window : middle])
            since = fsum(totals[middle:end])
            if before >= since:
                share = min(1.0, share + PACER)
        ordered = np.sort(known.ticks)
        return int(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def _draw(
    random: np.random.Generator, ids: np.ndarray, weights: np.ndarray, count: int
) -> np.ndarray:
    """Draw ``count`` of the ids without replacement, in proportion to weights.

    Args:
        random: generator of random numbers.
        ids: ids [n].
        weights: weights [n], greater than 0.
        count: number of ids to draw.
    """
    if not count:
        return ids[:0]
    # cumsum adds in order, so that the sum is the same on every machine.
    shares = weights / weights.cumsum()[-1]
    drawn: np.ndarray = random.choice(ids, count, replace=False, p=shares)
    return drawn


plugin = Oort
