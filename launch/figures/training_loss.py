"""Draw the training loss over rounds, before and after local training.

The loss is the mean over all clients' training samples. Only rounds with a stored state
are drawn (FedALA, Figure 5).
"""

from typing import TYPE_CHECKING

import numpy as np
import pandas
import torch
import torch.nn.functional as functional

from hpcfl.report import lines
from hpcfl.report.arrangement import arrange
from hpcfl.report.lines import MOMENTS
from hpcfl.report.sheet import Sheet, set_whole_ticks
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw two lines per method, before and after local training.

    Lines are means over seeds with a band. They have gaps at rounds without a stored state
    in all repetitions.
    """
    arranged = arrange(runs)
    frames = []
    missing: set[int] = set()
    for (row, column), cell in arranged.cells.items():
        found = [placed.run for placed in cell]
        played = [set(run.results.rounds[run.results.played].tolist()) for run in found]
        rounds = set.intersection(*played, *(run.models.replay.rounds for run in found))
        missing |= set.union(*played) - rounds
        # NaN in the round after a drawn round ends the line.
        drawn = sorted(rounds | {round + 1 for round in rounds})[:-1]
        for moment, text in MOMENTS.items():
            losses = np.array(
                [
                    [
                        compute_loss(run, moment, round) if round in rounds else np.nan
                        for round in drawn
                    ]
                    for run in found
                ]
            )
            line = {
                "panel": column if len(arranged.columns) > 1 else "",
                "row": f"{row}, {text}",
                "method": found[0].summary.method,
                "x": np.array(drawn, float),
                "mean": losses.mean(axis=0),
                "std": losses.std(axis=0, ddof=1) if len(found) > 1 else 0.0,
                "runs": len(found),
            }
            frames.append(pandas.DataFrame(line))
    frame = pandas.concat(frames)
    sheet.notes += [*arranged.notes, lines.count_repetitions(frame)]
    figure = lines.draw(
        sheet,
        frame,
        None,
        xlabel="round",
        ylabel="training loss",
    )
    for axes in figure.axes:
        axes.set_yscale("log")
        set_whole_ticks(axes.xaxis)
    if missing:
        most = max(run.config["rounds"] for run in arranged.runs)
        sheet.notes.append(
            f"without {len(missing)} rounds, whose state is not kept: checkpoint.every = "
            f"1 and checkpoint.keep = {most} before a run keep all"
        )
        for curve in (line for axes in figure.axes for line in axes.lines):
            curve.set_markevery(
                1
            )  # a round between two missing rounds has a mark but no line
    return figure


def compute_loss(run: Run, column: str, round: int) -> float:
    """Return the mean cross-entropy of the clients' models on their training samples.

    Args:
        run: Run.
        column: Column of models, "pre" or "post".
        round: Round of the models.
    """
    samples, total, count = run.models.replay.prepared.resources.samples, 0.0, 0
    for one in run.models.of_clients(run.models.everyone, column, round):
        x, y = samples.take(samples.train[one.clients[0]])
        with torch.no_grad():
            total += float(
                functional.cross_entropy(one.module(x.cpu()), y.cpu(), reduction="sum")
            )
        count += len(y)
    return total / count
