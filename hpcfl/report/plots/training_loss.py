"""The training loss of the models that local training starts from and ends with, over rounds.

It is the mean over all clients' training samples, of the rounds whose state is kept (FedALA, Figure 5).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as functional

from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import MOMENTS, Line
from hpcfl.report.plots.base import Sheet, whole_numbers
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plugin(runs: list[Run], sheet: Sheet) -> "Figure":
    """Two lines for each run, before and after local training."""
    arranged = arrange(runs)
    lines = []
    for run, (row, _) in zip(arranged.runs, arranged.places, strict=True):
        rounds = sorted(run.models.again.rounds & set(run.results.rounds[run.results.played].tolist()))
        for column, moment in MOMENTS.items():
            found = np.array([loss(run, column, round) for round in rounds])
            lines.append(Line(f"{row}, {moment}", _lines.method_of(run), np.array(rounds, float), found,
                              np.zeros(len(rounds)), 1))
    figure = _lines.draw(sheet, {"": lines}, None, xlabel="round", ylabel="training loss")
    figure.axes[0].set_yscale("log")
    whole_numbers(figure.axes[0].xaxis)
    return figure


def loss(run: Run, column: str, round: int) -> float:
    """The mean cross-entropy of the clients' models of a round on their own training samples."""
    samples, total, count = run.models.again.prepared.resources.samples, 0.0, 0
    for one in run.models.of_clients(run.models.everyone, column, round):
        x, y = samples.take(samples.train[one.clients[0]])
        with torch.no_grad():
            total += float(functional.cross_entropy(one.module(x.cpu()), y.cpu(), reduction="sum"))
        count += len(y)
    return total / count
