"""Draw the norms of the output layer's rows, which depend on the training classes.

Heatmaps show the norms by model (of a client or a class) and by class, next to the samples
of the clients (cwFedAvg, Figures 4, 6 and 7).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import find_counts
from hpcfl.report.sheet import Sheet, set_whole_ticks
from hpcfl.trained.models import LoadedModel
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 4  # maximum number of runs for which all panels are drawn


def draw(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw the samples of the clients, then the models of each run.

    For at most ``FEW`` runs further panels show the trained models, if all clients start
    from one model, and the class models.
    """
    arranged = arrange(runs)
    panels: dict[str, np.ndarray] = {"training samples": find_counts(runs[0], "train")}
    for run, _, label, _ in arranged.placed:
        panels |= {
            f"{label}{what}": table
            for what, table in compute_panels(run, len(arranged.runs) <= FEW).items()
        }
    rows = max(len(table) for table in panels.values())
    figure, places = sheet.panels(
        len(panels), most=4, height=min(2.6, 0.75 + 0.085 * rows)
    )
    for place, (title, table) in zip(places, panels.items(), strict=True):
        _draw(
            place,
            sheet.title(title),
            table,
            "class model" if title.endswith("class models") else "client",
        )
    sheet.notes.append(
        "norms of the output layer's rows; each panel has a separate scale, dark is small"
    )
    return figure


def compute_panels(run: Run, whole: bool) -> dict[str, np.ndarray]:
    """Return the panels [models, classes] of a run by title.

    Args:
        run: Run.
        whole: Whether to include trained models and class models.
    """
    everyone = run.models.everyone
    judged = compute_norms(run, run.models.of_clients(everyone))
    panels = {"": judged}
    if not whole:
        return panels
    if (judged == judged[0]).all():
        trained = compute_norms(run, run.models.of_clients(everyone, "post"))
        panels |= {
            ", after training": trained,
            ": change by training": trained - judged,
        }
    names = [
        name
        for name in run.models.replay.prepared.method.server_models(
            run.models.replay.server(max(run.models.replay.rounds))
        )
        if name.startswith("class ")
    ]
    if names:
        panels[": class models"] = compute_norms(run, run.models.of_server(names))
    return panels


def compute_norms(run: Run, models: Iterable[LoadedModel]) -> np.ndarray:
    """Return the norms of the output layer's rows without biases, [models, classes]."""
    head = f"{run.models.replay.prepared.setup.layout.head_name}.weight"
    rows = [one.module.state_dict()[head].double().norm(dim=1) for one in models]
    table: np.ndarray = torch.stack(rows).numpy()
    return table


def _draw(place: "Axes", title: str, table: np.ndarray, of: str) -> None:
    place.imshow(table, aspect="auto", interpolation="nearest")
    place.grid(False)
    place.set(title=title, xlabel="class", ylabel=of)
    for axis in (place.xaxis, place.yaxis):
        set_whole_ticks(axis, 5)
