"""Power-of-choice: those with the largest losses of some clients that are drawn (Cho,
Wang & Joshi, AISTATS 2022, arXiv:2010.01243).

It is the form without communication of its own, π_rpow-d: a client's loss is the one that
it told when it took part last, and infinite before. The paper draws its d candidates in
proportion to their samples; here all are drawn alike, so that with d = cohort the choice
is that of ``uniform``. The loss is the mean over the last local epoch, where the paper's
is over all local steps. π_pow-d, which lets the candidates score the server's model
before each round, is not there.
"""

import numpy as np

from hpcfl.clock.selection._drawn import OfDrawn, first
from hpcfl.clock.selection.base import Known


class PowerOfChoice(OfDrawn):
    by_losses = True

    def choose(self, known: Known, count: int) -> np.ndarray:
        drawn = self.drawn(known, count)
        never = known.told.heard == 0
        losses = np.where(never, np.inf, known.told.losses)
        return first(drawn, -losses[drawn], count)


plugin = PowerOfChoice
