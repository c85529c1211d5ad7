"""Each client's own number of a score, by method and by data, for kinds of figures with
a row for each method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange, name_repetitions, setting_of
from hpcfl.report.metric_values import (
    of_clients,
    read_at,
    refuse_unknown,
    resolve_metric,
)
from hpcfl.report.plots._lines import method_of, moment
from hpcfl.report.plots.base import LINE, Sheet
from hpcfl.report.series import drawable
from hpcfl.scores.metric_names import Measure
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Rows:
    """The clients' numbers, and what they measure.

    Attributes:
        numbers: A line for each client of each run that has a number, with ``panel``
            and ``row``, its labels, ``method``, ``seed``, such as ``seed=0``,
            ``client`` and ``number`` as it is shown; the row with the best mean first.
        repetitions: The label of the row, the seed and the run of each repetition.
        measure: What the numbers measure.
        metric: The name by which they were asked for.
    """

    numbers: "pandas.DataFrame"
    repetitions: list[tuple[str, str, Run]]
    measure: Measure
    metric: str

    @property
    def panels(self) -> "dict[str, dict[str, pandas.DataFrame]]":
        """The numbers by panel and row."""
        panels: dict[str, dict[str, pandas.DataFrame]] = {}
        for (panel, row), lines in self.numbers.groupby(["panel", "row"], sort=False):
            panels.setdefault(panel, {})[row] = lines
        return panels

    @property
    def methods(self) -> dict[str, str]:
        """The method of each row."""
        return dict(zip(self.numbers["row"], self.numbers["method"], strict=True))

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for _, _, run in self.repetitions]

    def moment(self, at: str) -> str:
        """Return a note on the rounds in which the numbers are read."""
        return moment(self.runs, read_at(self.metric, at))


def rows(
    runs: list[Run], sheet: Sheet, metric: str, at: str, group: Sequence[str]
) -> Rows:
    """Return the finished runs' rows; what was left out joins the sheet's notes. Raises
    UserError.
    """
    arranged = arrange(runs, group, options="--group")
    scores = rows_of(arranged.repetitions, sheet, metric or runs[0].metric, at)
    sheet.notes += arranged.notes
    return scores


def rows_of(
    repetitions: Mapping[tuple[str, str], list[Run]], sheet: Sheet, metric: str, at: str
) -> Rows:
    """Return the rows of runs by the labels of their row and of their data.

    Args:
        repetitions: The runs whose clients stand in a row.
        sheet: What is left out joins its notes.
        metric: What the numbers are; see ``metric_values.resolve_metric``.
        at: Where they are read: "best", "last" or "tail".

    Raises:
        UserError: No client has such a number.
    """
    import pandas

    runs = [run for of_row in repetitions.values() for run in of_row]
    refuse_unknown(runs, metric)
    measure = resolve_metric(runs[0], metric).measure
    if measure is None or measure.kind == "std":
        raise UserError(
            f"--metric {metric}: is no score that each client has; such as accuracy, loss"
        )
    seeds = iter(name_repetitions([setting_of(run) for run in runs]))
    read = []
    tables = []
    for (row, panel), of_row in repetitions.items():
        known = []
        for run in of_row:
            seed = next(seeds)
            numbers = of_clients(run, resolve_metric(run, metric).column, measure, at)
            shown = pandas.DataFrame({"number": drawable(measure.factor * numbers)})
            labels = {
                "panel": panel,
                "row": row,
                "method": method_of(run),
                "seed": seed,
            }
            known.append(shown.assign(**labels, client=shown.index).dropna())
            read.append((row, seed, run))
        if any(map(len, known)):
            tables += known
        else:
            sheet.notes.append(f"{row}: left out, its clients have no such number")
    if not tables:
        raise UserError(f"--metric {metric}: no client has a number of its own")
    numbers = pandas.concat(tables, ignore_index=True)
    return Rows(best_first(numbers, measure.rank(1.0)), read, measure, metric)


def best_first(numbers: "pandas.DataFrame", sign: float) -> "pandas.DataFrame":
    """Return the lines of ``Rows.numbers`` sorted by the means of their rows; ``sign``:
    1 where more is better, else -1.
    """
    means = numbers.groupby(["panel", "row"])["number"].transform("mean")
    order = np.argsort(-sign * means.to_numpy(), kind="stable")
    return numbers.iloc[order]


def paper(
    sheet: Sheet, scores: Rows, shared: bool = True
) -> "tuple[Figure, list[Axes]]":
    """Return panels with a line of text for each row, the first on top; ``shared``: with
    one x axis for all.
    """
    panels = scores.panels
    height = 0.75 + max(map(len, panels.values())) * 1.15 * LINE
    figure, places = sheet.panels(len(panels), height=height, sharex=shared)
    for place, (title, of_panel) in zip(places, panels.items(), strict=True):
        place.set_yticks(range(len(of_panel)), [sheet.beside(row) for row in of_panel])
        place.set_ylim(len(of_panel) - 0.4, -0.6)
        place.grid(False, axis="y")
        if len(panels) > 1:
            place.set_title(sheet.title(title))
    return figure, places
