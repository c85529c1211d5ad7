"""What a network with two features makes of the samples: its plane, with the head's rows as rays.

A dot is a test sample, a colour a class. Where the head looks at angles only, as FedNH's does, a sample's
distance from the centre means nothing, and each class lies on a ring of its own. One network for each run, of
client 0, and of another client where one is asked for (FedNH, Figures 1 and 2, on the spiral).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as functional

from hpcfl.errors import UserError
from hpcfl.models import parts
from hpcfl.models._heads import CosineHead
from hpcfl.report.arrangement import arrange
from hpcfl.report.plots.base import Sheet
from hpcfl.report.style import COLOURS
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plugin(runs: list[Run], sheet: Sheet, *, client: int = 0) -> "Figure":
    """A panel for each run and client; the models are those after local training."""
    arranged = arrange(runs)
    clients = list(dict.fromkeys([0, client]))
    several = len({column for _, column in arranged.places}) > 1
    panels = {f"{row}{f', {column}' if several else ''}{f', client {one}' if client else ''}": (run, one)
              for run, (row, column) in zip(arranged.runs, arranged.places, strict=True) for one in clients}
    figure, places = sheet.panels(len(panels), most=4, height=2.1)
    for place, (title, (run, one)) in zip(places, panels.items(), strict=True):
        _draw(place, run, one)
        place.set_title(sheet.title(title))
    sheet.notes.append("test samples of all clients in the plane of the two features, a colour a class; rays "
                       "are the rows of the output layer")
    return figure


def _draw(place: "Axes", run: Run, client: int) -> None:
    features, labels, rows = plane(run, client)
    for of_class in range(len(rows)):
        mine = features[labels == of_class]
        place.plot(mine[:, 0], mine[:, 1], linestyle="none", marker="o", markersize=1.2, alpha=0.5,
                   color=COLOURS[of_class % len(COLOURS)], markeredgewidth=0)
    reach = np.abs(features).max()
    for of_class, row in enumerate(rows * reach / np.linalg.norm(rows, axis=1).max()):
        place.plot([0, row[0]], [0, row[1]], color=COLOURS[of_class % len(COLOURS)], linewidth=1.4)
    place.set_aspect("equal", adjustable="datalim")


def plane(run: Run, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [n, 2] and classes [n] of all test samples, and the head's rows [classes, 2]."""
    module = parts(run.model(client, "post"))
    if module.head.in_features != 2:
        raise UserError(f"{run.folder}: its model has {module.head.in_features} features, only two can be "
                        "drawn; model.name = 'spiral' has two")
    x, y = run.models.samples(run.models.everyone)
    with torch.no_grad():
        features = module.features(x)
    if isinstance(module.head, CosineHead):
        rings = 0.5 + 0.5 * (y[:, None] + 1) / module.head.weight.shape[0]
        features = functional.normalize(features, dim=1) * rings
    return features.numpy(), y.numpy(), module.head.weight.detach().numpy()
