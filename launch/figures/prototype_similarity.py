"""Draw the cosines between the output layer's rows of a global model.

Classes of CIFAR-100 are sorted by super-class, which frames mark (FedNH, Figure 3).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as functional

from hpcfl.report.arrangement import arrange
from hpcfl.report.sheet import Sheet, set_whole_ticks
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# Krizhevsky 2009: super-class of each class of CIFAR-100, from the data set's
# ``coarse_labels``.
# fmt: off
SUPER_CLASSES = np.array(
    [
        4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5,
        10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8,
        15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12,
        16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19,
        5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
    ]
)
# fmt: on


def draw(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw one panel per run with a common colour scale and an empty diagonal."""
    arranged = arrange(runs)
    figure, places = sheet.panels(
        len(arranged.runs), height=0.85 * sheet.width / min(2, len(arranged.runs))
    )
    tables = [compute_cosines(run) for run in arranged.runs]
    order = np.arange(len(tables[0]))
    if all(run.summary.dataset == "cifar-100" for run in arranged.runs):
        order = np.argsort(SUPER_CLASSES, kind="stable")
    top = max(np.nanmax(np.abs(table)) for table in tables)
    rows = [placed.row for placed in arranged.placed]
    for place, table, row in zip(places, tables, rows, strict=True):
        image = place.imshow(
            table[order][:, order],
            vmin=-top,
            vmax=top,
            cmap="RdBu_r",
            interpolation="nearest",
        )
        place.grid(False)
        place.set(title=sheet.title(row), xlabel="class", ylabel="class")
        for axis in (place.xaxis, place.yaxis):
            set_whole_ticks(axis, 5)
        if len(order) == len(SUPER_CLASSES):
            for start in range(0, len(order), 5):
                place.add_patch(_frame(start))
            within, other = compute_contrast(table)
            sheet.notes.append(
                f"{row}: mean cosine {within:.3f} within a super-class, {other:.3f} outside"
            )
    figure.colorbar(image, ax=places, pad=0.01, aspect=30, shrink=0.8)
    return figure


def compute_cosines(run: Run) -> np.ndarray:
    """Return the cosines between the output layer's rows, [classes, classes].

    The diagonal is NaN.
    """
    head = f"{run.models.replay.prepared.setup.layout.head_name}.weight"
    rows = functional.normalize(run.model("global").state_dict()[head].double(), dim=1)
    table: np.ndarray = (rows @ rows.T).fill_diagonal_(torch.nan).numpy()
    return table


def compute_contrast(table: np.ndarray) -> tuple[float, float]:
    """Return the mean cosine within and between super-classes."""
    same = SUPER_CLASSES[:, None] == SUPER_CLASSES
    return float(np.nanmean(table[same])), float(np.nanmean(table[~same]))


def _frame(start: int) -> "Patch":
    """Return a frame around the five classes of a super-class."""
    from matplotlib.patches import Rectangle

    return Rectangle(
        (start - 0.5, start - 0.5), 5, 5, fill=False, edgecolor="black", linewidth=0.6
    )
