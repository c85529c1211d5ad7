"""How far apart the clients' models end that DiversiFed pulls together, and those that
it pushes apart.

After the last aggregation, over the temperature τ (DiversiFed, Figure 7).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfl.errors import UserError
from hpcfl.methods._anchored import Anchored
from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import _lines
from hpcfl.report.plots._lines import Line
from hpcfl.report.plots.base import Sheet
from hpcfl.report.summary import Run
from hpcfl.rows import mixing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = ("models that are pulled together", "models that are pushed apart")


def plugin(runs: list[Run], sheet: Sheet) -> "Figure":
    """A panel for either kind of pair: mean distances, with a band over seeds."""
    arranged = arrange(runs)
    found: dict[float, list[tuple[float, float]]] = {}
    for run in arranged.runs:
        found.setdefault(run.config["method"].get("tau", np.nan), []).append(
            distances(run)
        )
    tau = sorted(found)
    method, panels = _lines.method_of(arranged.runs[0]), {}
    for place, title in enumerate(PANELS):
        numbers = [[pair[place] for pair in found[one]] for one in tau]
        mean, std = (np.array([of(one) for one in numbers]) for of in (np.mean, np.std))
        panels[title] = [
            Line(method, method, np.array(tau), mean, std, max(map(len, numbers)))
        ]
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
    method, again = run.models.replay.prepared.method, run.models.replay
    if not isinstance(method, Anchored):
        raise UserError(f"{run.folder}: {method.name} neither pulls nor pushes models")
    models = again.server(max(again.rounds))["models"]
    everyone = torch.arange(len(models))
    apart = mixing.distances_within(models, everyone, everyone)
    force = method.attraction(apart, torch.eye(len(models), dtype=torch.bool))
    return float(apart[force > 0].mean()), float(apart[force < 0].mean())
