"""Draw distances of the models that DiversiFed attracts or repels, by temperature τ.

The models are those after the last aggregation (DiversiFed, Figure 7).
"""

from typing import TYPE_CHECKING

import numpy as np
import pandas
import torch

from hpcfl.errors import UserError
from hpcfl.methods._anchored import MixedAnchor
from hpcfl.report import lines
from hpcfl.report.arrangement import arrange
from hpcfl.report.sheet import Sheet
from hpcfl.rows import mixing
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = ("models that are pulled together", "models that are pushed apart")


def draw(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw mean distances over seeds, one panel for attracted and one for repelled pairs."""
    arranged = arrange(runs)
    method = arranged.runs[0].summary.method
    numbers = []
    for run in arranged.runs:
        tau = run.config["method"].get("tau", np.nan)
        numbers += [
            (title, method, method, tau, distance)
            for title, distance in zip(PANELS, compute_distances(run), strict=True)
        ]
    line = ["panel", "row", "method", "x"]
    frame = pandas.DataFrame(numbers, columns=[*line, "y"]).sort_values("x")
    of_places = frame.groupby(line, sort=False, dropna=False)["y"]
    drawn = of_places.agg(mean="mean", std="std", runs="size").reset_index()
    drawn = drawn.fillna({"std": 0.0})
    sheet.notes += [*arranged.notes, lines.count_repetitions(drawn)]
    return lines.draw(
        sheet,
        drawn,
        None,
        shares_y=False,
        xlabel="temperature τ",
        ylabel="mean Euclidean distance",
    )


def compute_distances(run: Run) -> tuple[float, float]:
    """Return the mean distances of attracted and of repelled pairs of models.

    Raises:
        UserError: If the method neither attracts nor repels models.
    """
    again = run.models.replay
    method = again.prepared.method
    if not isinstance(method, MixedAnchor):
        raise UserError(f"{run.folder}: {method.name} neither pulls nor pushes models")
    models = again.server(max(again.rounds))["models"]
    everyone = torch.arange(len(models))
    apart = mixing.compute_distances_within(models, everyone, everyone)
    force = method.compute_attraction(models, everyone, everyone)
    return float(apart[force > 0].mean()), float(apart[force < 0].mean())
