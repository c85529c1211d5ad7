"""What a server of six clients knows when it chooses."""

import numpy as np

from hpcfl.selection.base import Known, LossReports

TICKS = [50, 10, 40, 20, 30, 60]


def known(candidates=(1, 1, 1, 1, 1, 1), round=1, told=None, ticks=TICKS):
    """What a server of six clients knows, each with ten samples."""
    samples = np.full(6, 10)
    return Known(
        (round,),
        4,
        np.array(candidates, bool),
        samples,
        np.array(ticks),
        told or LossReports(samples),
    )


def told(*rounds):
    """``rounds``: of each the losses by client."""
    heard = LossReports(np.full(6, 10))
    for losses in rounds:
        heard.hear(np.array(list(losses)), np.array(list(losses.values())))
    return heard
