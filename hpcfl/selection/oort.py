"""Oort: clients with large utility for the model and high speed (Lai, Zhu, Madhyastha &
Chowdhury, OSDI 2021, Algorithm 1; the authors' code is in FedScale).

Of the K clients of a round, a share ε explores: it is drawn, in proportion to speed,
from clients that have never taken part. The others are drawn in proportion to their
utility

    (U_i − min U) / range U + √(0.1 ln R / L_i),    times (T/t_i)^α where t_i > T,

from clients with at least 95 % of the utility of the last of the best clients. U_i is a
client's samples times its loss, cut off at the 95 % quantile. R is the round, L_i the
client's last round, and t_i its working time. T is a quantile of all t_i. Every W
rounds it is raised, unless the rounds since then have brought more utility than the W
before them (the pacer).

Deviations. For U_i the paper takes the root of the mean of the squared losses of a
client's samples; here it is their mean, which clients send. As in the code, U is scaled
to its range before the uncertainty is added, and T is a quantile; the paper's T is in
seconds. The paper leaves out clients that were chosen more than 10 times; the code does
so only on request, and this selection never does. If too few clients have never taken
part, the others fill the cohort.
"""

from decimal import Decimal
from math import fsum

import numpy as np
from pydantic import Field, PositiveInt

from hpcfl.selection.base import Known, Selection

DECAY = 0.98  # of the share that explores, from round to round
LEAST = 0.2  # of it
CUT_OFF = 0.95  # of the utility of the last of the best clients
CLIP = 0.95  # quantile at which U is cut off
PACER = 0.05  # the increment of the quantile of T


class Oort(Selection):
    by_losses = True
    by_time = True
    explore: float = Field(
        0.9,
        ge=0,
        le=1,
        description="share of round 1 for clients that have never taken part; times 0.98 "
        "from round to round, down to 0.2",
    )
    preferred: float = Field(
        0.3,
        gt=0,
        le=1,
        description="share of the clients that are fast enough, in the first rounds",
    )
    penalty: PositiveInt = Field(
        2, le=10, description="α, how much less the slower ones count"
    )
    window: PositiveInt = Field(
        20, description="rounds after which more clients may be fast enough"
    )

    def choose(self, known: Known, count: int) -> np.ndarray:
        explored = known.reports.last_rounds > 0
        old = np.flatnonzero(known.candidates & explored)
        new = np.flatnonzero(known.candidates & ~explored)
        exploring = int(count * self.share(known.round) + 1e-9)
        exploring = max(exploring, count - len(old))
        exploring = min(exploring, len(new))
        best = self._best(known, old, count - exploring)
        assert known.ticks is not None
        speed = 1 / known.ticks[new]
        fast = _draw(known.random("explore"), new, speed, exploring)
        return np.concatenate([best, fast])

    def share(self, round: int) -> float:
        """Return ε, the share of a round's clients that have never taken part."""
        share = self.explore
        for _ in range(round - 1):
            if share <= LEAST:
                break
            share = max(share * DECAY, LEAST)
        return share

    def _best(self, known: Known, old: np.ndarray, count: int) -> np.ndarray:
        """Return at most ``count`` of the ids ``old``, drawn by utility among the best."""
        count = min(count, len(old))
        if not count:
            return old[:0]
        utilities = self.utilities(known, old)
        last = np.sort(utilities)[-count]
        good = utilities >= CUT_OFF * last
        return _draw(known.random("exploit"), old[good], utilities[good], count)

    def utilities(self, known: Known, old: np.ndarray) -> np.ndarray:
        """Return the utilities of the clients with the ids ``old``, [n]."""
        reports = known.reports
        gains = known.samples[old] * np.maximum(reports.losses[old], 0)
        ordered = np.sort(gains)
        clip = ordered[min(int(CLIP * len(ordered)), len(ordered) - 1)]
        width = max(ordered[-1] - ordered[0], 1e-4)
        learnt = (np.minimum(gains, clip) - ordered[0]) / width
        # rounded correctly, so that it is the same on every machine
        logarithm = float(Decimal(known.round).ln())
        utilities = learnt + np.sqrt(0.1 * logarithm / reports.last_rounds[old])
        assert known.ticks is not None
        slowness = self.limit(known) / known.ticks[old]
        for _ in range(self.penalty):
            utilities *= np.minimum(slowness, 1)
        result: np.ndarray = utilities
        return result

    def limit(self, known: Known) -> int:
        """Return T, the ticks within which a client is fast enough."""
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
    """Draw ``count`` of the ids [n] without replacement, in proportion to ``weights``
    [n].

    The weights are above 0.
    """
    if not count:
        return ids[:0]
    # added one after the other, in the same way on every machine
    shares = weights / weights.cumsum()[-1]
    drawn: np.ndarray = random.choice(ids, count, replace=False, p=shares)
    return drawn


plugin = Oort
