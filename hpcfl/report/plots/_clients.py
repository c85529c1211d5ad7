"""Each client's own number of a score, by method and by data: what three kinds of
figures show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange, called, setting_of
from hpcfl.report.plots._lines import method_of, moment
from hpcfl.report.plots.base import LINE, Sheet
from hpcfl.report.reading import named, of_clients, read_at, refuse_unknown
from hpcfl.report.series import drawable
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Row:
    """The clients of one method.

    seeds: what each repetition is called, such as ``seed=0``. numbers: by repetition as
    they are shown, [clients] each, NaN for clients without one.
    """

    label: str
    method: str
    runs: list[Run]
    seeds: list[str]
    numbers: list[np.ndarray]

    @property
    def known(self) -> np.ndarray:
        """The numbers of all clients of all repetitions that have one, [n]."""
        everyone = np.concatenate(self.numbers)
        numbers: np.ndarray = everyone[np.isfinite(everyone)]
        return numbers


@dataclass(frozen=True)
class Rows:
    """By the label of their data the rows, the best one first; what their numbers
    measure.
    """

    panels: dict[str, list[Row]]
    measure: Measure
    runs: list[Run]
    metric: str

    @property
    def rows(self) -> list[Row]:
        """Those of all panels."""
        return [row for of_panel in self.panels.values() for row in of_panel]

    @property
    def longest(self) -> int:
        """How many rows the longest panel has."""
        return max(map(len, self.panels.values()))

    def moment(self, at: str) -> str:
        """In which of the rounds the numbers are read, where ``at`` was asked for."""
        return moment(self.runs, read_at(self.metric, at))


def rows(
    runs: list[Run], sheet: Sheet, metric: str, at: str, group: Sequence[str]
) -> Rows:
    """The finished runs' rows; what was left out joins the sheet's notes. Raises
    UserError.
    """
    arranged = arrange(runs, group, options="--group")
    scores = rows_of(arranged.repetitions, sheet, metric or runs[0].metric, at)
    sheet.notes += arranged.notes
    return scores


def rows_of(
    repetitions: Mapping[tuple[str, str], list[Run]], sheet: Sheet, metric: str, at: str
) -> Rows:
    """The rows of runs by the labels of their row and of their data.

    Args:
        repetitions: The runs whose clients stand in a row.
        sheet: What is left out joins its notes.
        metric: What the numbers are; see ``reading.named``.
        at: Where they are read: "best", "last" or "tail".

    Raises:
        UserError: No client has such a number.
    """
    runs = [run for of_row in repetitions.values() for run in of_row]
    refuse_unknown(runs, metric)
    measure = named(runs[0], metric).measure
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--metric {metric}: is no score that each client has; such as accuracy, loss"
        )
    seeds = dict(
        zip(map(id, runs), called([setting_of(run) for run in runs]), strict=True)
    )
    panels: dict[str, list[Row]] = {}
    for (label, column), of_row in repetitions.items():
        numbers = []
        for run in of_row:
            read = of_clients(run, named(run, metric).column, measure, at)
            numbers.append(drawable(measure.factor * read))
        row = Row(
            label,
            method_of(of_row[0]),
            of_row,
            [seeds[id(run)] for run in of_row],
            numbers,
        )
        if len(row.known):
            panels.setdefault(column, []).append(row)
        else:
            sheet.notes.append(f"{label}: left out, its clients have no such number")
    if not panels:
        raise UserError(f"--metric {metric}: no client has a number of its own")
    for of_panel in panels.values():
        of_panel.sort(key=lambda row: -measure.rank(float(row.known.mean())))
    return Rows(panels, measure, runs, metric)


def paper(
    sheet: Sheet, scores: Rows, shared: bool = True
) -> "tuple[Figure, list[Axes]]":
    """Panels with a line of text for each row, the first on top; ``shared``: with one x
    axis for all.
    """
    figure, places = sheet.panels(
        len(scores.panels), height=0.75 + scores.longest * 1.15 * LINE, sharex=shared
    )
    for place, (title, of_panel) in zip(places, scores.panels.items(), strict=True):
        place.set(
            title=sheet.title(title) if len(scores.panels) > 1 else "",
            ylim=(len(of_panel) - 0.4, -0.6),
        )
        place.set_yticks(
            range(len(of_panel)), [sheet.beside(row.label) for row in of_panel]
        )
        place.grid(False, axis="y")
    return figure, places
