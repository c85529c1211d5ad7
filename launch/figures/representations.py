"""Draw the features of a network in a plane and the head's rows as rays.

Each dot is a test sample and each colour a class. More than two features, and the rays, are
projected to the plane of the two principal components of the features. A head that depends
only on angles, such as FedNH's, ignores the distance of a sample from the centre. With two
features the figure then draws each class on a separate ring. The figure shows the network
of client 0, and optionally that of a second client (FedNH, Figures 1 and 2, on the spiral,
whose network has two features).
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional
from principal import project_to_plane

from hpcfl.models import parts
from hpcfl.models.heads import CosineHead
from hpcfl.report.arrangement import arrange
from hpcfl.report.sheet import Sheet, list_colours, make_look
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    """Features of samples in a plane.

    Attributes:
        points: Features of the samples, [n, 2].
        labels: Classes of the samples, [n].
        rays: Rows of the head, [classes, 2].
        axes: Labels of the axes by matplotlib's names.
    """

    points: np.ndarray
    labels: np.ndarray
    rays: np.ndarray
    axes: dict[str, str]


def draw(runs: list[Run], sheet: Sheet, *, client: int = 0) -> "Figure":
    """Draw one panel per run and client, with models after local training.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        client: Id of a second client in addition to client 0.
    """
    arranged = arrange(runs)
    clients = list(dict.fromkeys([0, client]))
    several = len(arranged.columns) > 1
    panels = {
        f"{row}{f', {column}' if several else ''}{f', client {one}' if client else ''}": (
            run,
            one,
        )
        for run, _, row, column in arranged.placed
        for one in clients
    }
    figure, places = sheet.panels(len(panels), most=4, height=2.3)
    for place, (title, (run, one)) in zip(places, panels.items(), strict=True):
        _draw(place, run, one)
        place.set_title(sheet.title(title))
    handles, labels = places[0].get_legend_handles_labels()
    if labels:
        sheet.legend(figure, handles, labels)
    sheet.notes.append(
        "test samples of all clients, a colour a class; rays are the rows of the output layer"
    )
    if places[0].get_xlabel():
        sheet.notes.append(
            "of more than two features: the plane of their two principal components"
        )
    return figure


def _draw(place: "Axes", run: Run, client: int) -> None:
    drawn = project_features(run, client)
    for of_class in range(len(drawn.rays)):
        mine = drawn.points[drawn.labels == of_class]
        place.plot(
            mine[:, 0],
            mine[:, 1],
            linestyle="none",
            marker="o",
            markersize=1.2,
            alpha=0.5,
            color=make_look(of_class).color,
            markeredgewidth=0,
        )
    reach = np.abs(drawn.points).max()
    for of_class, ray in enumerate(
        drawn.rays * reach / np.linalg.norm(drawn.rays, axis=1).max()
    ):
        look = make_look(of_class)
        place.plot(
            [0, ray[0]],
            [0, ray[1]],
            color=look.color,
            linestyle=look.linestyle,
            linewidth=1.4,
            label=f"class {of_class}"
            if len(drawn.rays) <= len(list_colours())
            else None,
        )
    place.set(**drawn.axes)
    place.set_aspect("equal", adjustable="datalim")


def project_features(run: Run, client: int) -> Drawn:
    """Return the features of all test samples by a client's model in two dimensions."""
    module = parts(run.model(client, "post"))
    x, y = run.models.samples(run.models.everyone)
    with torch.no_grad():
        features = module.features(x)
    by_angle, rays = (
        isinstance(module.head, CosineHead),
        module.head.weight.detach().numpy(),
    )
    if by_angle:
        features = functional.normalize(features, dim=1)
    if rays.shape[1] == 2:
        rings = 0.5 + 0.5 * (y[:, None] + 1) / len(rays) if by_angle else 1
        return Drawn((features * rings).numpy(), y.numpy(), rays, {})
    found = project_to_plane(features.numpy())
    return Drawn(found.points, y.numpy(), rays @ found.directions, found.axes)
