"""Fastest: the fastest clients of a uniformly drawn group.

This follows FedCS (Nishio & Yonetani, ICC 2019), in which the clients of a random group
report their durations, and the server chooses among them. FedCS chooses as many clients
as fit before a deadline, with transfers one after another over a shared link. Here the
number of clients is fixed, and links are not shared.
"""

import numpy as np

from hpcfl.selection.base import BestOfDrawn, Known, take_cheapest


class Fastest(BestOfDrawn):
    by_time = True

    def choose(self, known: Known, count: int) -> np.ndarray:
        assert known.ticks is not None
        drawn = self.draw_candidates(known, count)
        return take_cheapest(drawn, known.ticks[drawn], count)


plugin = Fastest
