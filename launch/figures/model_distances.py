"""Draw the final distances of clients' models that DiversiFed attracts or repels.

The models are those after the last aggregation, over the temperature τ (DiversiFed,
Figure 7).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfl.errors import UserError
from hpcfl.methods._anchored import MixedAnchor
from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import Line
from hpcfl.report.plots.base import Sheet
from hpcfl.report.series import deviation
from hpcfl.rows import mixing
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = ("models that are pulled together", "models that are pushed apart")


def draw(runs: list[Run], sheet: Sheet) -> "Figure":
    """A panel for either kind of pair: mean distances, with a band over seeds."""
    arranged = arrange(runs)
    by_tau: dict[float, list[tuple[float, float]]] = {}
    for run in arranged.runs:
        tau = run.config["method"].get("tau", np.nan)
        by_tau.setdefault(tau, []).append(distances(run))
    temperatures = np.array(sorted(by_tau))
    most_runs = max(map(len, by_tau.values()))
    method = _lines.method_of(arranged.runs[0])
    panels = {}
    for place, title in enumerate(PANELS):
        numbers = [[pair[place] for pair in by_tau[tau]] for tau in temperatures]
        mean = np.array([np.mean(of_tau) for of_tau in numbers])
        std = np.array([deviation(np.array(of_tau)) for of_tau in numbers])
        panels[title] = [Line(method, method, temperatures, mean, std, most_runs)]
    sheet.notes += [*arranged.notes, _lines.repeated(panels[PANELS[0]])]
    return _lines.draw(
        sheet,
        panels,
        None,
        shared=False,
        xlabel="temperature τ",
        ylabel="mean Euclidean distance",
    )


def distances(run: Run) -> tuple[float, float]:
    """The mean distance of two clients' models of which one is pulled to, or pushed
    from, the other.

    Raises UserError for a method without such forces.
    """
    again = run.models.replay
    method = again.prepared.method
    if not isinstance(method, MixedAnchor):
        raise UserError(f"{run.folder}: {method.name} neither pulls nor pushes models")
    models = again.server(max(again.rounds))["models"]
    everyone = torch.arange(len(models))
    apart = mixing.distances_within(models, everyone, everyone)
    force = method.attraction(apart, torch.eye(len(models), dtype=torch.bool))
    return float(apart[force > 0].mean()), float(apart[force < 0].mean())
