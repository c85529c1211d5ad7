"""Scores of the clients: a dot for each client and a box for each method.

The box spans the first to the third quartile with the median. Clients of all
repetitions are drawn next to each other, because a new partition for each seed makes
client 7 of two repetitions different clients. A figure has at most ``MOST`` dots; with
more clients every second or every third client has a dot, the same in all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from pandas import DataFrame, concat

from hpcfl.errors import UserError
from hpcfl.report import lines
from hpcfl.report.arrangement import arrange, name_repetitions
from hpcfl.report.comparison import find_partition
from hpcfl.report.metric_values import Reading, find_client_measure, read_clients
from hpcfl.report.sheet import LETTER, LINE, Sheet, choose_looks
from hpcfl.report.text import shorten
from hpcfl.scores.metric_names import Measure
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20_000  # maximum number of dots in a figure


@dataclass(frozen=True)
class Rows:
    """Scores of the clients, grouped by panel and row.

    Attributes:
        numbers: Frame with a row for each client of each run that has a score. Columns:
            ``panel`` and ``row`` (labels), ``method``, ``seed`` (such as ``seed=0``),
            ``partition`` (from ``find_partition``), ``client`` and ``number`` (in the
            displayed unit). Rows with the best mean come first.
        repetitions: Runs of all rows by the name of their seed.
        measure: Measure of the scores.
        reading: Resolved name of the score, and rounds at which it is read.
    """

    numbers: DataFrame
    repetitions: dict[str, list[Run]]
    measure: Measure
    reading: Reading

    @property
    def panels(self) -> dict[str, dict[str, DataFrame]]:
        """Scores by panel and row."""
        panels: dict[str, dict[str, DataFrame]] = {}
        for (panel, row), of_row in self.numbers.groupby(["panel", "row"], sort=False):
            panels.setdefault(panel, {})[row] = of_row
        return panels

    @property
    def methods(self) -> dict[str, str]:
        """Method of each row."""
        return dict(zip(self.numbers["row"], self.numbers["method"], strict=True))

    @property
    def runs(self) -> list[Run]:
        """Runs of all repetitions."""
        return [run for of_seed in self.repetitions.values() for run in of_seed]

    @property
    def label(self) -> str:
        """Label of the axis of the scores."""
        return lines.name_scores(self.runs, self.reading.metric)

    @property
    def moment(self) -> str:
        """Note on the rounds at which the scores are read."""
        return lines.name_rounds(self.runs, self.reading.at)


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw a row for each method or other ``group``, the best mean at the top.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        metric: Name of a per-client score; default the primary metric.
        at: Rounds at which the score is read: "best", "last" or "tail".
        group: Keys that define a row; default the method.

    Raises:
        UserError: If no client has such a score.
    """
    scores = read_rows(runs, sheet, Reading(metric, at), group)
    sheet.notes.append(
        f"a dot is the score of a client, {scores.moment}; a box "
        "spans the middle half of the clients, with the median; rows are sorted by mean"
    )
    return draw(sheet, scores, scores.label)


def draw(sheet: Sheet, scores: Rows, label: str) -> "Figure":
    """Draw dots and boxes.

    Args:
        sheet: Sheet to draw on; a note on left-out dots is added to it.
        scores: Scores of the clients.
        label: Label of the x axis.
    """
    looks = choose_looks(scores.methods)
    step = max(1, ceil(len(scores.numbers) / MOST))
    if step > 1:
        sheet.notes.append(f"one dot for every {step} clients")
    figure, places = make_panels(sheet, scores)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(shorten(label))
        for position, (row, numbers) in enumerate(of_panel.items()):
            dots = numbers[numbers["client"] % step == 0]
            # Neighbours get different heights so that their dots do not overlap. A
            # formula instead of random numbers makes the figure reproducible.
            heights = position + 0.28 * np.sin(2.4 * np.arange(len(dots)))
            place.scatter(
                dots["number"],
                heights,
                s=7,
                color=looks[row].color,
                alpha=0.55,
                linewidths=0,
                clip_on=False,
            )
        place.boxplot(
            [numbers["number"] for numbers in of_panel.values()],
            positions=range(len(of_panel)),
            orientation="horizontal",
            widths=0.62,
            showcaps=False,
            showfliers=False,
            whiskerprops={"linestyle": "none"},
            medianprops={"color": "black", "linewidth": 1.4},
            manage_ticks=False,
        )
    return figure


def read_rows(
    runs: list[Run], sheet: Sheet, reading: Reading, group: Sequence[str] = ()
) -> Rows:
    """Return the per-client scores of the finished runs.

    Args:
        runs: Runs, at least one.
        sheet: Sheet of the figure; notes on left-out runs are added to it.
        reading: Score, and rounds at which it is read.
        group: Keys that define a row; by default the method.

    Raises:
        UserError: If no client has such a score.
    """
    arranged = arrange(runs, group, options="--group")
    reading = reading.resolve(arranged.runs)
    measure = find_client_measure(arranged.runs, reading.metric)
    seeds = name_repetitions([placed.setting for placed in arranged.placed])
    repetitions: dict[str, list[Run]] = {}
    tables = []
    for placed, seed in zip(arranged.placed, seeds, strict=True):
        run = placed.run
        own = read_clients(run, reading.metric, reading.at)
        table = {
            "panel": placed.column,
            "row": placed.row,
            "method": run.summary.method,
            "seed": seed,
            "partition": find_partition(placed),
            "client": np.arange(len(own)),
            "number": np.where(
                np.abs(own) < lines.BEYOND, measure.factor * own, np.nan
            ),
        }
        tables.append(DataFrame(table))
        repetitions.setdefault(seed, []).append(run)
    numbers = concat(tables, ignore_index=True)
    known = numbers.dropna()
    if known.empty:
        raise UserError(f"--metric {reading.metric}: no client has this score")
    sheet.notes += arranged.notes
    for row in numbers["row"].unique():
        if row not in set(known["row"]):
            sheet.notes.append(f"{row}: left out, its clients lack this score")
    return Rows(sort_rows(known, measure.orient(1.0)), repetitions, measure, reading)


def sort_rows(numbers: DataFrame, sign: float) -> DataFrame:
    """Sort the lines of ``Rows.numbers`` by the means of their rows, best first.

    Args:
        numbers: Lines of ``Rows.numbers``.
        sign: 1 if larger numbers are better, else -1.
    """
    means = numbers.groupby(["panel", "row"])["number"].transform("mean")
    return numbers.iloc[np.argsort(-sign * means.to_numpy(), kind="stable")]


def make_panels(
    sheet: Sheet, scores: Rows, shares_x: bool = True
) -> "tuple[Figure, list[Axes]]":
    """Return a figure and its panels, with a labelled line for each row, the first on top.

    Args:
        sheet: Sheet to draw on.
        scores: Scores of the clients.
        shares_x: Whether all panels have the same x axis.
    """
    panels = scores.panels
    height = 0.75 + max(map(len, panels.values())) * 1.15 * LINE
    figure, places = sheet.panels(len(panels), height=height, sharex=shares_x)
    widest = int(sheet.width / 2 / LETTER)
    for place, (title, of_panel) in zip(places, panels.items(), strict=True):
        labels = [shorten(row, widest) for row in of_panel]
        place.set_yticks(range(len(of_panel)), labels)
        place.set_ylim(len(of_panel) - 0.4, -0.6)
        place.grid(False, axis="y")
        if len(panels) > 1:
            place.set_title(sheet.title(title))
    return figure, places
