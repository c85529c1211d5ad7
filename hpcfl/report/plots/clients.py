"""Each client's score: a dot a client, and a box from the first to the third quarter of
them with the median.

Clients of all repetitions stand side by side, because with a partition of its own for
each seed client 7 is another one in each. A figure has about ``MOST`` dots: of more
clients every second one has a dot, or every third, the same in all rows.
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
from hpcfl.report.metric_values import Reading, find_client_measure, of_clients
from hpcfl.report.sheet import LETTER, LINE, Sheet, choose_looks
from hpcfl.report.text import shorten
from hpcfl.scores.metric_names import Measure
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20_000  # dots of a figure


@dataclass(frozen=True)
class Rows:
    """The clients' numbers, and what they measure.

    Attributes:
        numbers: A line for each client of each run that has a number, with ``panel``
            and ``row``, its labels, ``method``, ``seed``, such as ``seed=0``,
            ``client`` and ``number`` as it is shown; the row with the best mean first.
        repetitions: The runs by the name of their seed, in every row.
        measure: What the numbers measure.
        reading: The resolved name of the numbers, and the rounds in which they are read.
    """

    numbers: DataFrame
    repetitions: dict[str, list[Run]]
    measure: Measure
    reading: Reading

    @property
    def panels(self) -> dict[str, dict[str, DataFrame]]:
        """The numbers by panel and row."""
        panels: dict[str, dict[str, DataFrame]] = {}
        for (panel, row), of_row in self.numbers.groupby(["panel", "row"], sort=False):
            panels.setdefault(panel, {})[row] = of_row
        return panels

    @property
    def methods(self) -> dict[str, str]:
        """The method of each row."""
        return dict(zip(self.numbers["row"], self.numbers["method"], strict=True))

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for of_seed in self.repetitions.values() for run in of_seed]

    @property
    def label(self) -> str:
        """The label of an axis with the numbers."""
        return lines.name_scores(self.runs, self.reading.metric)

    @property
    def moment(self) -> str:
        """A note on the rounds in which the numbers are read."""
        return lines.name_rounds(self.runs, self.reading.at)


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
) -> "Figure":
    """Draw a row for each method, or other ``group``, the best mean on top."""
    scores = read_rows(runs, sheet, Reading(metric, at), group)
    sheet.notes.append(
        f"a dot is a client's own number, {scores.moment}; a box "
        "has the middle half of the clients and the median; rows by their mean"
    )
    return draw(sheet, scores, scores.label)


def draw(sheet: Sheet, scores: Rows, label: str) -> "Figure":
    """Draw dots and boxes. label: of the x axis."""
    looks = choose_looks(scores.methods)
    step = max(1, ceil(len(scores.numbers) / MOST))
    if step > 1:
        sheet.notes.append(f"a dot for one client in {step}")
    figure, places = make_panels(sheet, scores)
    for place, of_panel in zip(places, scores.panels.values(), strict=True):
        place.set_xlabel(shorten(label))
        for position, (row, numbers) in enumerate(of_panel.items()):
            dots = numbers[numbers["client"] % step == 0]
            # Neighbours get different heights, so that their dots do not cover one
            # another; by a formula, so that the same runs make the same figure.
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
    """Return the rows of finished runs; what was left out joins the sheet's notes.

    Args:
        runs: At least one.
        sheet: The sheet of the figure.
        reading: What the numbers are, and where they are read.
        group: Keys that make a row, by default the method.

    Raises:
        UserError: No client has such a number.
    """
    arranged = arrange(runs, group, options="--group")
    reading = reading.resolve(arranged.runs)
    measure = find_client_measure(arranged.runs[0], reading.metric)
    seeds = name_repetitions([placed.setting for placed in arranged.placed])
    repetitions: dict[str, list[Run]] = {}
    tables = []
    for (run, _, row, panel), seed in zip(arranged.placed, seeds, strict=True):
        own = of_clients(run, reading.metric, reading.at)
        table = {
            "panel": panel,
            "row": row,
            "method": run.summary.method,
            "seed": seed,
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
        raise UserError(f"--metric {reading.metric}: no client has a number of its own")
    sheet.notes += arranged.notes
    for row in numbers["row"].unique():
        if row not in set(known["row"]):
            sheet.notes.append(f"{row}: left out, its clients have no such number")
    return Rows(sort_rows(known, measure.rank(1.0)), repetitions, measure, reading)


def sort_rows(numbers: DataFrame, sign: float) -> DataFrame:
    """Return the lines of ``Rows.numbers`` sorted by the means of their rows; ``sign``:
    1 where more is better, else -1.
    """
    means = numbers.groupby(["panel", "row"])["number"].transform("mean")
    return numbers.iloc[np.argsort(-sign * means.to_numpy(), kind="stable")]


def make_panels(
    sheet: Sheet, scores: Rows, shared: bool = True
) -> "tuple[Figure, list[Axes]]":
    """Return panels with a line of text for each row, the first on top; ``shared``: with
    one x axis for all.
    """
    panels = scores.panels
    height = 0.75 + max(map(len, panels.values())) * 1.15 * LINE
    figure, places = sheet.panels(len(panels), height=height, sharex=shared)
    widest = int(sheet.width / 2 / LETTER)
    for place, (title, of_panel) in zip(places, panels.items(), strict=True):
        labels = [shorten(row, widest) for row in of_panel]
        place.set_yticks(range(len(of_panel)), labels)
        place.set_ylim(len(of_panel) - 0.4, -0.6)
        place.grid(False, axis="y")
        if len(panels) > 1:
            place.set_title(sheet.title(title))
    return figure, places
