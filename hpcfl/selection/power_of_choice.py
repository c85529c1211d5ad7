"""Power-of-choice: the clients with the largest losses of a uniformly drawn group (Cho,
Wang & Joshi, AISTATS 2022, arXiv:2010.01243).

This is the form without further communication, π_rpow-d: a client's loss is that of its
last training, and infinite before its first. The paper draws its d candidates in
proportion to their samples; here the draw is uniform, so that with d = cohort the
choice equals ``uniform``. The loss is the mean over the last local epoch; the paper's
is over all local steps. π_pow-d, in which the candidates score the server's model
before each round, is not implemented.
"""

import numpy as np

from hpcfl.selection.base import BestOfDrawn, Known, take_cheapest


class PowerOfChoice(BestOfDrawn):
    by_losses = True

    def choose(self, known: Known, count: int) -> np.ndarray:
        drawn = self.drawn(known, count)
        never = known.reports.last_rounds == 0
        losses = np.where(never, np.inf, known.reports.losses)
        return take_cheapest(drawn, -losses[drawn], count)


plugin = PowerOfChoice
