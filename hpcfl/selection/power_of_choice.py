"""Power-of-choice: the clients with the largest losses of a uniformly drawn group (Cho,
Wang & Joshi, AISTATS 2022, arXiv:2010.01243).

This is the variant without additional communication, π_rpow-d: a client's loss is the
loss of its last training, and infinite before its first training. The paper draws its d
candidates in proportion to their samples; here the draw is uniform, so that with d =
cohort the selection equals ``uniform``. The loss is the mean over the last local epoch;
in the paper it is the mean over all local steps. π_pow-d, in which the candidates
evaluate the server's model before each round, is not implemented.
"""

import numpy as np

from hpcfl.selection.base import BestOfDrawn, Known, take_cheapest


class PowerOfChoice(BestOfDrawn):
    by_losses = True

    def choose(self, known: Known, count: int) -> np.ndarray:
        drawn = self.draw_candidates(known, count)
        never = known.reports.last_rounds == 0
        losses = np.where(never, np.inf, known.reports.losses)
        return take_cheapest(drawn, -losses[drawn], count)


plugin = PowerOfChoice
