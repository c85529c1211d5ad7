"""What each client gains over a reference, such as training alone: whom a method helps
and whom it hurts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcfl.report.comparison import named_row
from hpcfl.report.plots import _clients, clients
from hpcfl.report.plots._clients import Row, Rows
from hpcfl.report.plots.base import Sheet, literal
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
    against: str = "local",
) -> "Figure":
    """A row for each method but the reference, the best mean gain on top.

    Raises UserError where no row is called ``against``.
    """
    scores = _clients.rows(runs, sheet, metric, at, group)
    gains = beside(scores, against)
    sheet.notes.append(
        f"a dot is a client's own number less that under {against}, {scores.moment(at)}; "
        "left of the line it is worse off; a box has the middle half of the clients"
    )
    return draw(sheet, gains, against)


def draw(sheet: Sheet, gains: Rows, against: str) -> "Figure":
    """Dots and boxes with a line where a client gains nothing."""
    unit = "points" if gains.measure.percent else gains.measure.unit
    unit = f" ({unit})" if unit else ""
    label = literal(f"gain in {gains.measure.score} over {against}{unit}")
    figure = clients.draw(sheet, gains, label)
    for place in figure.axes:
        place.axvline(0, color="black", linewidth=0.8, linestyle=":")
    return figure


def beside(scores: Rows, against: str) -> Rows:
    """The gains of each row over the one called ``against`` in its panel, in the
    repetitions that both have; rows without any are left out.

    Raises UserError where no panel has such a row, or nothing beside it.
    """
    labels = list(dict.fromkeys(row.label for row in scores.rows))
    reference = named_row(against, labels)
    sign = scores.measure.rank(1.0)
    panels = {}
    for title, of_panel in scores.panels.items():
        by_label = {row.label: row for row in of_panel}
        if reference not in by_label:
            continue
        others = [row for row in of_panel if row.label != reference]
        gains = [_gain(row, by_label[reference], sign) for row in others]
        known = [row for row in gains if row.numbers and len(row.known)]
        if known:
            known.sort(key=lambda row: -float(row.known.mean()))
            panels[title] = known
    return replace(scores, panels=panels)


def _gain(row: Row, reference: Row, sign: float) -> Row:
    """A row's numbers less those of the reference, of the seeds that both have."""
    of_reference = dict(zip(reference.seeds, reference.numbers, strict=True))
    runs, seeds, numbers = [], [], []
    for run, seed, of_run in zip(row.runs, row.seeds, row.numbers, strict=True):
        other = of_reference.get(seed)
        if other is not None and len(other) == len(of_run):
            runs.append(run)
            seeds.append(seed)
            numbers.append(sign * (of_run - other))
    return replace(row, runs=runs, seeds=seeds, numbers=numbers)
