"""Draw a client's estimates of its class distribution during its first training.

Round 1 is repeated for this client. After each mini-batch the estimates are the norms of
the output layer's rows divided by their sum (cwFedAvg, Figures 2 and 5).
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from steps import make_step_recorder

from hpcfl.clients import StepContext
from hpcfl.methods.overlays.class_wise import estimate_from_norms
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import find_counts
from hpcfl.report.sheet import Sheet, choose_looks, list_colours, make_look
from hpcfl.report.text import shorten
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(runs: list[Run], sheet: Sheet, *, client: int = 0) -> "Figure":
    """Draw one panel per run with one line per class.

    A last panel compares the final estimates with the true class shares.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        client: Id of the client.
    """
    arranged = arrange(runs)
    labels = [placed.row for placed in arranged.placed]
    count = len(arranged.runs) + 1
    figure, panels = sheet.panels(
        count, most=3, height=min(2.4, 0.9 * sheet.width / min(count, 3))
    )
    methods = [run.summary.method for run in arranged.runs]
    looks = choose_looks(dict(zip(labels, methods, strict=True)))
    for run, label, panel in zip(arranged.runs, labels, panels[:-1], strict=True):
        estimated = compute_estimates(run, client)
        truth = compute_shares(run, client)
        _draw_classes(panel, estimated, truth)
        panel.set(title=sheet.title(label), xlabel="mini-batch of round 1")
        panels[-1].plot(
            truth,
            estimated[-1],
            linestyle="none",
            marker=looks[label].marker,
            color=looks[label].color,
            alpha=0.8,
            markersize=4,
            markeredgewidth=0,
            label=shorten(label),
        )
    panels[0].set_ylabel("estimated share of a class")
    highest = max(panel.get_ylim()[1] for panel in panels[:-1])
    for panel in panels[:-1]:
        panel.set_ylim(0, highest)
    largest = 1.05 * max(
        panels[-1].dataLim.max
    )  # limits for a diagonal from corner to corner
    panels[-1].axline((0, 0), slope=1, color="black", linewidth=0.7)
    panels[-1].set(
        title="after the last of them",
        xlabel="true share of a class",
        ylabel="estimated share",
        xlim=(-0.02 * largest, largest),
        ylim=(0, largest),
    )
    _legend(sheet, figure, panels)
    samples = int(find_counts(arranged.runs[0], "train")[client].sum())
    sheet.notes.append(
        f"client {client}, with {samples:,} training samples; round 1 was played again for it"
    )
    return figure


def _draw_classes(panel: "Axes", estimated: np.ndarray, truth: np.ndarray) -> None:
    """Draw one line per class, with the classes of the client on top."""
    mini_batches = np.arange(1, len(estimated) + 1)
    for label in np.argsort(truth):
        look = make_look(int(label))
        panel.plot(
            mini_batches,
            estimated[:, label],
            linewidth=0.9,
            color=look.color,
            linestyle=look.linestyle,
            label=f"class {label}",
        )


def _legend(sheet: Sheet, figure: "Figure", panels: "list[Axes]") -> None:
    """Draw a legend of the runs, and of the classes if they have distinct styles."""
    lines = dict(zip(*panels[0].get_legend_handles_labels()[::-1], strict=True))
    marks = dict(zip(*panels[-1].get_legend_handles_labels()[::-1], strict=True))
    classes = sorted(lines, key=lambda label: int(label.split()[1]))
    if len(classes) > len(list_colours()):
        sheet.notes.append(
            f"lines of {len(classes)} classes share looks and have no legend"
        )
        classes = []
    shown = {label: lines[label] for label in classes} | marks
    sheet.legend(figure, list(shown.values()), list(shown))


def compute_estimates(run: Run, client: int) -> np.ndarray:
    """Return the class shares estimated after each mini-batch, [mini-batches, classes]."""
    again = run.models.replay
    columns = again.prepared.setup.layout.columns("head.weight")
    classes = again.prepared.setup.classes
    seen: list[torch.Tensor] = []

    def look(phase: str, context: StepContext) -> None:
        if phase == "train":
            head = context.rows()[0, columns].double().view(classes, -1)
            seen.append(estimate_from_norms(head))

    for _ in again.play(1, False, [client], make_step_recorder(look)):
        pass
    estimated: np.ndarray = torch.stack(seen).cpu().numpy()
    return estimated


def compute_shares(run: Run, client: int) -> np.ndarray:
    """Return the share of each class in a client's training samples, [classes]."""
    counts = find_counts(run, "train")[client]
    of_classes: np.ndarray = counts / counts.sum()
    return of_classes
