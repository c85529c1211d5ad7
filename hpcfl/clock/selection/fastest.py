"""Fastest: those who are the fastest of some clients that are drawn.

So it is in FedCS (Nishio & Yonetani, ICC 2019): a random group says how long it would
take, and the server takes of it. FedCS takes as many clients as fit into a deadline, one
after the other over a shared link; here it is a given number, and links are not shared.
"""

import numpy as np

from hpcfl.clock.selection._drawn import OfDrawn, first
from hpcfl.clock.selection.base import Known


class Fastest(OfDrawn):
    by_time = True

    def choose(self, known: Known, count: int) -> np.ndarray:
        assert known.ticks is not None
        drawn = self.drawn(known, count)
        return first(drawn, known.ticks[drawn], count)


plugin = Fastest
