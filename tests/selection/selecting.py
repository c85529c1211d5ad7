"""Information of a server with six clients when it selects clients."""

import numpy as np

from hpcfl.selection.base import Known, LossReports

TICKS = [50, 10, 40, 20, 30, 60]


def make_known(candidates=(1, 1, 1, 1, 1, 1), round=1, reports=None, ticks=TICKS):
    """Return the information of a server with six clients of ten samples each."""
    samples = np.full(6, 10)
    return Known(
        (round,),
        4,
        np.array(candidates, bool),
        samples,
        np.array(ticks),
        reports or LossReports(samples),
    )


def report(*rounds):
    """Return reports of some rounds, for each the losses by client."""
    reports = LossReports(np.full(6, 10))
    for losses in rounds:
        reports.add(np.array(list(losses)), np.array(list(losses.values())))
    return reports
