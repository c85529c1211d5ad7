"""Figures of a run or a sweep as PNG: the score that counts over rounds, the clients' samples by class."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.report.summary import Run, load_all
from hpcfl.report.tables import best_first
from hpcfl.report.text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, distinct for all kinds of colour vision. Seven colours and four line styles, which
# have no common factor, make 28 different lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {  # new versions of matplotlib have a type for these keys, which older ones lack
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.7, "axes.axisbelow": True,
    "axes.titlesize": 11, "axes.titlelocation": "left"}
PANELS = (("pre", "before local training"), ("post", "after local training"))  # column, title


def draw(folder: Path) -> list[Path]:
    """Draw the figures of a run or a sweep into its folder and return their paths.

    The curves are called after the score that counts, mostly ``accuracy.png``; the samples are in
    ``clients.png``, or in one such file for each partition that the runs use. Without matplotlib nothing is
    drawn. Raises UserError if there is no run in the folder.
    """
    if find_spec("matplotlib") is None:  # many compute nodes have just what training needs
        print("note: no figures, matplotlib is not installed here")
        return []
    import matplotlib

    runs = best_first(load_all(folder))
    drawn = {re.sub(r"[^\w-]+", "_", runs[0].measure.score) + ".png": curves(runs)}
    partitions = _partitions(runs)
    for label, counts in partitions.items():
        name = "clients.png" if len(partitions) == 1 else f"clients-{label}.png"
        drawn[name] = bubbles(counts)
    for name, figure in drawn.items():
        with matplotlib.rc_context({"savefig.bbox": "tight"}):
            figure.savefig(folder / name, dpi=160)
    return [folder / name for name in drawn]


def curves(runs: list[Run]) -> "Figure":
    """The score that counts over rounds, before and after local training; a line for each run, in order."""
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot no window system is touched

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for index, run in enumerate(runs):
            style = {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}
            for panel, (column, _) in zip(panels, PANELS, strict=True):
                numbers = run.measure.factor * run.accuracy(column)
                known = ~np.isnan(numbers)
                panel.plot(run.results.rounds[known], numbers[known], label=_label(run),
                           linewidth=1.8, **style)
        for panel, (_, title) in zip(panels, PANELS, strict=True):
            panel.set(title=title, xlabel="round")
        measure = runs[0].measure
        unit = f" ({_literal(measure.unit)})" if measure.unit else ""
        panels[0].set_ylabel(f"{_literal(measure.score)} on the clients' test samples{unit}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure


def bubbles(counts: np.ndarray) -> "Figure":
    """Training samples of each client in each class, ``counts [clients, classes]``, as areas of circles."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(np.clip(0.32 * clients, 4, 24) + 1.6,
                                 np.clip(0.32 * classes, 2.5, 24) + 0.8), layout="constrained")
        axes = figure.subplots()
        client, label = np.nonzero(counts)
        scale = 230 / counts.max()  # points² a sample: the largest bubble just fits between the grid lines
        areas = np.maximum(scale * counts[client, label], 1)
        axes.scatter(client, label, s=areas, color=COLOURS[0], alpha=0.75, linewidth=0)
        axes.set(xlabel="client", ylabel="class", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2),
                 title=f"training samples by client and class ({int(counts.sum()):,} in total)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=25, steps=[1, 2, 5, 10]))
        for size in _legend_sizes(int(counts.max())):
            axes.scatter([], [], s=scale * size, color=COLOURS[0], alpha=0.75, linewidth=0, label=str(size))
        figure.legend(title="samples", loc="outside right upper", frameon=False, labelspacing=1.1,
                      borderpad=0.8)
    return figure


def _label(run: Run) -> str:
    """The run's label for the legend, in which matplotlib leaves out lines whose label begins with '_'."""
    return _literal(run.label).removeprefix("_")


def _literal(text: str) -> str:
    """A text that matplotlib shows letter by letter: '$' would begin a formula."""
    return plain(text).replace("$", r"\$")


def _legend_sizes(most: int) -> list[int]:
    """Up to three sizes at most ``most``, ascending: every other one of 1, 2, 5, 10, 20, …"""
    sizes = [step * 10 ** power for power in range(len(str(most))) for step in (1, 2, 5)]
    return [size for size in sizes if size <= most][::-2][:3][::-1]


def _partitions(runs: list[Run]) -> dict[str, np.ndarray]:
    """The runs' different counts ``[clients, classes]``, by the label of the first run that has them."""
    partitions: dict[str, np.ndarray] = {}
    for run in sorted(runs, key=lambda run: run.label):
        counts = run.results.static.get("train_counts")
        if counts is not None and not any(np.array_equal(counts, known) for known in partitions.values()):
            partitions[run.label] = counts
    return partitions
